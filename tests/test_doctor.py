"""The draft doctor: every rule finds its fault, the loader refuses the same, and the probe names what is wrong."""

from __future__ import annotations

import json
import random
import re
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor import DOCUMENT, render
from support.broken_pairs import BROKEN, DRAFT, IDS, TARGET, Pair, config, write_pair
from support.checkpoints import (
    DRAFT_GRAPHS,
    DraftSpec,
    TinyCheckpoint,
    draft_config,
    target_config,
    write_draft,
    write_target,
)
from support.draft_formats import DRAFT as FORMAT_DRAFT
from support.draft_formats import FORMATS, SourceDraft, draft_folder
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, _core, errors
from eagle31rt.doctor.report import Report, examine

# Rules that never refuse: what they see loads.
NOTES = {"feedback", "draft-length", "context-length", "tokenizer"}


def check(pair: Pair, **options: Any) -> Report:
    return examine(pair.target.directory, pair.draft.directory, **options)


def load(pair: Pair, max_model_len: int | None = None, **overrides: Any) -> LLM:
    speculation = {"method": "eagle3", "model": pair.draft.path, "num_speculative_tokens": 2, **overrides}
    return LLM(
        pair.target.directory,
        speculative_config=speculation,
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
        num_threads=1,
        kv_cache_memory_bytes=1 << 20,
    )


def test_a_valid_pair_passes_every_rule(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    report = check(pair)
    assert report.loads
    assert [(one.rule, one.status) for one in report.findings] == [
        (rule["rule"], "passed") for rule in _core.draft_rules()
    ]
    assert all(one.message == one.fix == "" and one.error is None and not one.options for one in report.findings)
    values = {one.name: (one.value, one.origin) for one in report.resolved}
    assert values["capture_layers"] == ("[2,4,5]", "usual layers, residual index")
    assert values["draft_vocab_size"] == ("20", '"draft_vocab_size"')
    assert values["feedback"] == ("pre", "norm_output") and values["norm_output"] == ("false", '"norm_output"')
    assert values["embed_tokens.weight"][0] == "shared" and values["lm_head.weight"][0] == "own"
    assert load(pair).info["capture_layers"] == [2, 4, 5]


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found_and_refused_alike(name: str, tmp_path: Path) -> None:
    broken = BROKEN[name]
    pair = write_pair(tmp_path, broken.spec)
    broken.apply(pair)
    report = check(pair, **broken.options)
    assert not report.loads
    found = [one for one in report.findings if one.rule == broken.rule]
    assert {one.status for one in found} == {broken.status}
    assert any(re.search(broken.message, one.message) for one in found), found
    info = next(rule for rule in _core.draft_rules() if rule["rule"] == broken.rule)
    assert all(one.fix == info["fix"] for one in found)
    refused = report.with_status("refused", "fixable")
    with pytest.raises(errors.Eagle31rtError) as caught:
        load(pair, **broken.options)
    # The loader stops at the first fault in its own order, with the finding's words.
    same = [one for one in refused if str(caught.value).startswith(one.message)]
    assert same, (str(caught.value), refused)
    assert type(caught.value).__name__ in {one.error for one in same}


def test_every_rule_has_a_fault_here() -> None:
    rules = {rule["rule"] for rule in _core.draft_rules()}
    assert {broken.rule for broken in BROKEN.values()} | NOTES == rules
    assert len(BROKEN) >= 12


@pytest.mark.parametrize("name", ["quantised by its config", "no d2t", "another vocabulary", "both norms before fc"])
def test_the_loader_names_the_rule(name: str, tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    BROKEN[name].apply(pair)
    with pytest.raises(errors.Eagle31rtError, match=rf"\(rule {BROKEN[name].rule}\)$"):
        load(pair)


def test_a_wrong_draft_is_refused_before_the_target_is_read(tmp_path: Path) -> None:
    """Of a large target, reading the weights is minutes."""
    pair = write_pair(tmp_path)
    BROKEN["no d2t"].apply(pair)
    BROKEN["a target without one tensor"].apply(pair)
    with pytest.raises(errors.CheckpointError, match="rule d2t"):
        load(pair)


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    config(vocab_size=95, fc_norm=True, sliding_window=64, **{IDS: [4, 2, 5]})(pair)
    report = check(pair)
    refused = [one.rule for one in report.with_status("refused")]
    assert refused == ["sliding-window", "vocabulary", "layer-ids", "switch-tensors"]
    # What needs a refused rule is not judged.
    skipped = {one.rule for one in report.with_status("skipped")}
    assert {"fc", "d2t", "t2d", "tensor-shapes"} <= skipped and "rope" not in skipped


def test_without_a_target_nothing_about_the_draft_is_claimed(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    BROKEN["a target of another family"].apply(pair)
    passed = {one.rule for one in check(pair).with_status("passed")}
    assert passed == {"draft-is-target", "draft-files", "tensor-names", "tokenizer"}


def test_either_numbering_is_an_option_that_works(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    BROKEN["ids of either numbering"].apply(pair)
    report = check(pair)
    (finding,) = report.with_status("fixable")
    readings = {option.value: option.result for option in finding.options}
    assert readings == {"residual_index": "capture_layers [1,4,6]", "layer_output": "capture_layers [2,5,7]"}
    # The rest is checked all the same: the number of states is the same in both.
    assert not report.with_status("skipped", "refused")
    for option in finding.options:
        override = {option.name: option.value}
        assert check(pair, **override).loads
        assert load(pair, **override).info["capture_layers"] == json.loads(option.result.split(" ", 1)[1])
    overridden = check(pair, capture_layers=[0, 4, 8], feedback="post")
    assert overridden.loads and overridden.value_of("capture_layers") == "[0,4,8]"
    assert {one.name: one.origin for one in overridden.resolved}["feedback"] == "override"


def test_the_length_option_works(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    (finding,) = check(pair, max_model_len=600).with_status("fixable")
    (option,) = finding.options
    assert (option.name, option.value) == ("max_model_len", "512")
    assert check(pair, max_model_len=int(option.value)).loads


def note(report: Report, rule: str) -> str:
    assert report.loads
    (finding,) = [one for one in report.findings if one.rule == rule]
    assert finding.status == "note" and finding.fix and finding.error is None
    return finding.message


def test_notes_about_what_loads(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    config(max_position_embeddings=128, rope_theta=500000.0)(pair)
    report = check(pair)
    assert "is 128, below the 512 positions" in note(report, "context-length")
    assert "theta 500000" in note(report, "rope") and "theta 10000" in note(report, "rope")
    assert not check(pair, max_model_len=128).with_status("refused")
    assert [one.rule for one in check(pair, max_model_len=128).with_status("note")] == ["rope"]
    load(pair)


def test_notes_of_one_format(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET)
    source = SourceDraft(target, replace(FORMAT_DRAFT, norm_output=True))
    spec_forge = Pair(target, TinyCheckpoint(FORMATS["SpecForge"].write(tmp_path / "specforge", source), {}, {}, DRAFT))
    assert "pass feedback" in note(check(spec_forge), "feedback")
    assert not check(spec_forge, feedback="pre").with_status("note")
    draft = write_draft(tmp_path / "draft", target, DraftSpec(form="speculators", spelling="layers"))
    pair = Pair(target, draft)
    proposal = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}]}
    config(speculators_config={**proposal, "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B"}})(pair)
    assert "num_speculative_tokens is 6" in note(check(pair, num_speculative_tokens=6), "draft-length")
    report = check(pair, num_speculative_tokens=5)
    assert not report.with_status("note") and report.value_of("made_for") == '"meta-llama/Llama-3.1-8B"'
    config(speculators_config={"proposal_methods": "greedy", "verifier": [1]})(pair)
    assert check(pair, num_speculative_tokens=5).loads


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_passes(name: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET)
    folder = draft_folder(FORMATS[name].write(tmp_path / "draft", SourceDraft(target)), tmp_path / "converted")
    report = examine(target.directory, folder)
    assert report.loads and report.value_of("capture_layers") == "[2,4,5]", report.with_status("refused")


@pytest.mark.parametrize("graph", DRAFT_GRAPHS)
def test_every_graph_passes(graph: str, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, DraftSpec(draft_vocab_size=20, graph=graph, spelling="layers", num_layers=2))
    assert check(pair).loads and load(pair).info["capture_layers"] == [2, 4, 5]
    config(num_hidden_layers=1)(pair)  # a layer that would be left out
    assert [one.rule for one in check(pair).with_status("refused")] == ["architecture"]


ODD_VALUES: dict[str, list[Any]] = {
    "hidden_size": [40, 0, "32"], "num_attention_heads": [3, None, 8], "num_key_value_heads": [None, 4, 3],
    "head_dim": [None, 16, 12], "intermediate_size": [39, -1], "vocab_size": [95, 2**31, None], "model_type": [None, 7],
    "target_hidden_size": [None, 64], "draft_vocab_size": [None, 96, 0, 21], "torch_dtype": ["bfloat16", "int8"],
    "max_position_embeddings": [1, 0, None], "rms_norm_eps": [0, 1e-6], "rope_theta": [1e6, 0.5, "x"],
    "rope_scaling": [{"type": "yarn"}, {"rope_type": "linear", "factor": 2}, []], "attention_bias": [True, 1],
    "fc_norm": [True, None], "norm_output": [True, None, 0], "norm_before_fc": [True], "bias": [True],
    "norm_before_residual": [True, None], "tie_word_embeddings": [True], "num_hidden_layers": [2, None],
    IDS: [None, [], [1, 4, 6], [1, 3, 4], [8], [2, 4, 9], 5, "2"], "num_aux_hidden_states": [None, 4, 1, 9],
    "architectures": [None, ["LlamaForCausalLMEagle"], "Eagle3"], "eagle_config": [{"use_mtp_layernorm": True}, {}],
    "speculators_model_type": ["eagle3", "peagle"], "sliding_window": [64, 100000], "logit_scale": [1.0, 2],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_the_doctor_agrees_with_the_loader(seed: int, tmp_path: Path) -> None:
    """Whatever a config says: it loads if and only if nothing is refused, and nothing else is ever raised."""
    draw = random.Random(seed)
    pair = write_pair(tmp_path)
    keys = draw.sample(sorted(ODD_VALUES), draw.randint(1, 3))
    config(**{key: draw.choice(ODD_VALUES[key]) for key in keys})(pair)
    report = check(pair)
    if report.loads:
        load(pair)
        return
    with pytest.raises(errors.Eagle31rtError) as caught:
        load(pair)
    assert any(str(caught.value).startswith(one.message) for one in report.with_status("refused", "fixable"))


def test_a_tokenizer_beside_the_draft_must_be_the_targets(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    folders = (pair.target.directory, pair.draft.directory)
    for folder in folders:
        write_tiny_tokenizer(folder)
    assert not check(pair).with_status("note")
    template = json.loads((folders[1] / "tokenizer_config.json").read_text()) | {"chat_template": "{{ messages }}"}
    (folders[1] / "tokenizer_config.json").write_text(json.dumps(template))
    assert "chat template" in note(check(pair), "tokenizer")
    other = json.loads((folders[1] / "tokenizer.json").read_text())
    vocabulary = other["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folders[1] / "tokenizer.json").write_text(json.dumps(other))
    assert "2 of the 96 tokens" in note(check(pair), "tokenizer")
    (folders[1] / "tokenizer.json").write_text("[]")
    assert "cannot be compared" in note(check(pair), "tokenizer")


# ---------------------------------------------------------------- large models

LAYERS = 160
SIZES = {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_key_value_heads": 8}


def write_sparse(path: Path, tensors: dict[str, tuple[int, ...]]) -> int:
    """A safetensors file in BF16 whose data is a hole; returns the bytes of the data."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return offset


def layer_shapes(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    hidden, intermediate, key = 16384, 53248, 8 * 128
    attention = {"q": (hidden, width), "k": (key, width), "v": (key, width), "o": (hidden, hidden)}
    mlp = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    shapes: dict[str, tuple[int, ...]] = {
        **{f"{prefix}self_attn.{name}_proj.weight": shape for name, shape in attention.items()},
        **{f"{prefix}mlp.{name}_proj.weight": shape for name, shape in mlp.items()},
    }
    return shapes | {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}


def write_large_pair(folder: Path) -> tuple[Path, Path, int]:
    target, draft = folder / "target", folder / "draft"
    for directory in (target, draft):
        directory.mkdir()
    sizes = {**SIZES, "vocab_size": 128256, "head_dim": 128, "torch_dtype": "bfloat16"}
    (target / "config.json").write_text(
        json.dumps({**target_config(TARGET), **sizes, "num_hidden_layers": LAYERS, "max_position_embeddings": 131072})
    )
    ids = {IDS: [2, 80, 157], "target_hidden_size": 16384, "draft_vocab_size": 128256}
    (draft / "config.json").write_text(json.dumps({**draft_config(DraftSpec(), TARGET), **sizes, **ids}))
    weight_map: dict[str, str] = {}
    total = 0
    for index in range(LAYERS):
        shapes = layer_shapes(f"model.layers.{index}.", 16384)
        if index == 0:
            shapes |= {"model.embed_tokens.weight": (128256, 16384), "lm_head.weight": (128256, 16384)}
            shapes["model.norm.weight"] = (16384,)
        name = f"model-{index + 1:05}-of-{LAYERS:05}.safetensors"
        total += write_sparse(target / name, shapes)
        weight_map |= dict.fromkeys(shapes, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    head = {"fc.weight": (16384, 49152), "norm.weight": (16384,), "layers.0.hidden_norm.weight": (16384,)}
    write_sparse(draft / "model.safetensors", head | layer_shapes("layers.0.", 32768))
    return target, draft, total


def test_a_terabyte_is_checked_in_a_second(tmp_path: Path) -> None:
    target, draft, total = write_large_pair(tmp_path)
    assert total > 10**12
    started = time.process_time()  # not the clock on the wall: others may run
    report = examine(target, draft)
    seconds = time.process_time() - started
    assert report.loads, report.with_status("refused")
    assert report.value_of("target_bytes") == str(total) and seconds < 1.0


def test_a_draft_of_a_sharded_target_of_other_shapes(tmp_path: Path) -> None:
    target, draft, _ = write_large_pair(tmp_path)
    (target / f"model-00007-of-{LAYERS:05}.safetensors").unlink()
    report = examine(target, draft)
    assert [one.rule for one in report.with_status("refused")] == ["target-tensors"]
    assert "model-00007" in report.with_status("refused")[0].message


# ---------------------------------------------------------------- the document


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(), "run python tests/doctor.py"


def test_a_pair_of_widths(tmp_path: Path) -> None:
    """H != Ht is fine with an embedding and a head of the draft's own."""
    target = write_target(tmp_path / "target", TARGET)
    wide = write_draft(tmp_path / "draft", target, DraftSpec(hidden_size=40, num_heads=5, num_kv_heads=1))
    assert check(Pair(target, wide)).loads
