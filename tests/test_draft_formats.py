"""Every published format of one draft loads to the same bits, and drafts the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from draft_formats import DOCUMENT, render
from support.checkpoints import TinyCheckpoint, write_target
from support.draft_formats import DRAFT, FORMATS, GRAPHS, STATES, TARGET, SourceDraft, draft_folder, gguf_layer
from support.draft_gguf import write_draft_gguf
from support.engine import random_prompt, run_draft
from support.tensors import rounded

from eagle31rt import LLM, SamplingParams, _testing
from eagle31rt.cli import main
from eagle31rt.errors import CheckpointError
from eagle31rt.gguf_draft import target_offsets

Loaded = dict[str, Any]
Drafts = tuple[bytes, list[int]]  # logits, ids
NUM_STEPS = 4
# What the forward pass depends on. head_dim, rope and eps among them; names and dtype of the file are not.
GRAPH = ("hidden_size", "target_hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim",
         "vocab_size", "draft_vocab_size", "capture_layers", "rms_norm_eps", "rope", "qkv_bias", "mlp_bias", "fc_bias",
         "fc_norm", "norm_before_fc", "norm_output", "norm_before_residual", "dtype")  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return write_target(tmp_path_factory.mktemp("formats") / "target", TARGET, seed=1)


def drafts(target: TinyCheckpoint, folder: Path) -> Drafts:
    logits, ids = run_draft(target.path, folder, random_prompt(11), NUM_STEPS)
    return logits.tobytes(), ids


def flat(loaded: Loaded) -> dict[str, Any]:
    """Every loaded array by name. The embedding is compared through the drafts: some formats ship the target's."""
    arrays = {f"layer.{name}": values for name, values in loaded["layer"].items()}
    arrays |= {name: loaded[name] for name in ("fc", "fc_bias", "fc_norm", "head", "final_norm", "draft_to_target")}
    return arrays


def assert_source(loaded: Loaded, source: SourceDraft) -> None:
    """The loaded draft is the one that was written."""
    weights = source.weights
    np.testing.assert_array_equal(loaded["fc"], weights["fc.weight"])
    np.testing.assert_array_equal(loaded["head"], weights["lm_head.weight"])
    qkv = np.concatenate([weights[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkv"])
    np.testing.assert_array_equal(loaded["layer"]["qkv"], qkv)
    np.testing.assert_array_equal(loaded["layer"]["hidden_norm"], weights["layers.0.hidden_norm.weight"])
    np.testing.assert_array_equal(loaded["layer"]["input_norm"], weights["layers.0.input_layernorm.weight"])
    assert loaded["draft_to_target"] == (weights["d2t"] + np.arange(40)).tolist()
    assert loaded["config"]["capture_layers"] == STATES


@pytest.fixture(scope="module")
def reference(
    target: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Loaded, tuple[bytes, list[int]]]:
    source = SourceDraft(target)
    folder = FORMATS["SpecForge"].write(tmp_path_factory.mktemp("reference"), source)
    loaded = _testing.load_draft_weights(str(folder), target.path)
    assert_source(loaded, source)
    return loaded, drafts(target, folder)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_draft(
    name: str, target: TinyCheckpoint, reference: tuple[Loaded, Drafts], tmp_path: Path
) -> None:
    folder = draft_folder(FORMATS[name].write(tmp_path / "draft", SourceDraft(target)), tmp_path / "converted")
    loaded = _testing.load_draft_weights(str(folder), target.path)
    expected, expected_drafts = reference
    assert {key: loaded["config"][key] for key in GRAPH} == {key: expected["config"][key] for key in GRAPH}
    for key, values in flat(expected).items():
        np.testing.assert_array_equal(flat(loaded)[key], values, err_msg=key)
    assert drafts(target, folder) == expected_drafts


@pytest.mark.parametrize("switch", ["fc_norm", "norm_output", "norm_before_residual"])
def test_switches_in_every_format_that_has_them(switch: str, target: TinyCheckpoint, tmp_path: Path) -> None:
    source = SourceDraft(target, replace(DRAFT, **{switch: True}))
    found = {}
    for name, kind in FORMATS.items():
        if switch in kind.switches:
            folder = draft_folder(kind.write(tmp_path / name, source), tmp_path / f"{name} converted")
            assert _testing.load_draft_weights(str(folder), target.path)["config"][switch], name
            found[name] = drafts(target, folder)
    assert len(found) >= 3 and len(set(map(str, found.values()))) == 1
    plain = FORMATS["SpecForge"].write(tmp_path / "plain", SourceDraft(target))
    assert drafts(target, plain) not in found.values()


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_in_every_format_that_has_them(graph: str, target: TinyCheckpoint, tmp_path: Path) -> None:
    source = SourceDraft(target, GRAPHS[graph])
    found = {}
    for name, kind in FORMATS.items():
        if graph in kind.graphs:
            folder = kind.write(tmp_path / name, source)
            config = _testing.load_draft_weights(str(folder), target.path)["config"]
            assert (config["num_layers"], config["capture_layers"]) == (GRAPHS[graph].num_layers, STATES), name
            assert ("qk_norm" in config, "mla" in config) == (graph == "qwen3", graph == "latent attention"), name
            found[name] = drafts(target, folder)
    assert len(found) >= 2 and len(set(map(str, found.values()))) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_recognition(name: str, target: TinyCheckpoint, tmp_path: Path) -> None:
    path = FORMATS[name].write(tmp_path, SourceDraft(target))
    if FORMATS[name].recognised is not None:
        assert _testing.recognise_draft_format((path / "config.json").read_bytes()) == FORMATS[name].recognised


def test_other_spellings_are_recognised() -> None:
    for config, name in (
        ({"architectures": ["LlamaForCausalLM"], "truncated_vocab_size": 9}, "SafeAILab"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "parallel_drafting": False}, "NeMo Automodel"),
        ({"architectures": ["Eagle3Qwen3vlForCausalLM"]}, "vLLM"),
        # What vLLM reads, and what `eagle31rt train` writes.
        ({"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, "vLLM"),
        ({}, "flat"),
    ):
        assert _testing.recognise_draft_format(json.dumps(config).encode()) == name


def test_d2t_of_target_ids_and_of_offsets() -> None:
    kept = np.array([0, 1, 5, 60, 90])
    offsets = kept - np.arange(5)
    for values in (kept, offsets):
        np.testing.assert_array_equal(target_offsets(values, 92, "file"), offsets)
    prefix = np.arange(80)  # ids 0 to 79; as offsets they would be every other id
    np.testing.assert_array_equal(target_offsets(prefix, 92, "file"), np.zeros(80))
    np.testing.assert_array_equal(target_offsets(np.zeros(80, dtype=np.int64), 92, "file"), np.zeros(80))
    with pytest.raises(CheckpointError, match=r"file: tensor 'd2t' \(3 of 92 tokens\) can hold target ids"):
        target_offsets(np.array([0, 4, 9]), 92, "file")
    # 32000 of 128256 with no neighbours among them: nobody makes such a vocabulary.
    np.testing.assert_array_equal(target_offsets(2 * np.arange(32000), 128256, "file"), np.arange(32000))


@pytest.mark.parametrize("name", ["SafeAILab .bin", "GGUF, d2t of target ids"])
def test_files_to_convert_are_given_as_they_are(
    name: str, target: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLM takes them, converts once, speculates with them, and changes no id."""
    monkeypatch.setenv("EAGLE31RT_CACHE", str(tmp_path / "cache"))
    path = FORMATS[name].write(tmp_path / "draft", SourceDraft(target))
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    options: dict[str, Any] = {"skip_tokenizer_init": True, "num_threads": 1, "kv_cache_memory_bytes": 16 << 20}

    def run(draft: Path | None) -> tuple[list[int], int]:
        speculation = {"model": str(draft), "num_speculative_tokens": 3} if draft else None
        llm = LLM(target.path, speculative_config=speculation, **options)
        output = llm.generate([random_prompt(9)], greedy, use_tqdm=False)[0]
        return list(output.outputs[0].token_ids), output.metrics.num_accepted_tokens

    plain, _ = run(None)
    ids, accepted = run(FORMATS["SpecForge"].write(tmp_path / "folder", SourceDraft(target)))
    assert run(path) == (ids, accepted) and ids == plain and accepted > 0
    (made,) = (tmp_path / "cache").iterdir()
    before = (made / "model.safetensors").stat().st_mtime_ns
    # The folder of a lone GGUF file will do as well, and nothing is converted again.
    assert run(path.parent if path.suffix else path) == (ids, accepted)
    assert [made] == list((tmp_path / "cache").iterdir())
    assert (made / "model.safetensors").stat().st_mtime_ns == before


def convert(target: TinyCheckpoint, folder: Path, **options: Any) -> dict[str, Any]:
    """config.json of a GGUF draft with other options of write_draft_gguf."""
    source = SourceDraft(target)
    folder.mkdir()
    write_draft_gguf(folder / "draft.gguf", gguf_layer(source), source.weights, STATES, {}, **options)
    converted = draft_folder(folder / "draft.gguf", folder / "converted")
    config: dict[str, Any] = json.loads((converted / "config.json").read_text())
    return config


def test_rope_of_gguf_files(target: TinyCheckpoint, tmp_path: Path) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 512}
    assert convert(target, tmp_path / "yarn", keys=yarn)["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}  # fmt: skip
    # The factors that transformers' llama3 rope has for these settings, computed one by one.
    expected = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 1024}  # fmt: skip
    factors = []
    for pair in range(4):
        length = 2 * np.pi * 10000.0 ** (pair / 4)
        smooth = (1024 / length - 1) / 3
        factors.append(1.0 if length < 256 else 8.0 if length > 1024 else 1 / ((1 - smooth) / 8 + smooth))
    assert factors[2] not in (1.0, 8.0) and factors[:1] + factors[3:] == [1.0, 8.0]
    table = {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    assert convert(target, tmp_path / "llama3", tensors=table)["rope_scaling"] == expected
    ones = {"rope_freqs.weight": np.ones(4, dtype=np.float32)}
    assert convert(target, tmp_path / "ones", tensors=ones)["rope_scaling"] is None


def test_quantised_gguf_tensors_become_bfloat16(target: TinyCheckpoint, tmp_path: Path) -> None:
    source = SourceDraft(target)
    values = source.weights["layers.0.self_attn.o_proj.weight"]
    weights = {name: array for name, array in source.weights.items() if not name.endswith("o_proj.weight")}
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    options = {"raw": {"blk.0.attn_output.weight": (packed, gguf.GGMLQuantizationType.Q8_0)}}
    write_draft_gguf(tmp_path / "draft.gguf", gguf_layer(source), weights, STATES, {}, **options)
    folder = draft_folder(tmp_path / "draft.gguf", tmp_path / "converted")
    loaded = _testing.load_draft_weights(str(folder), target.path)["layer"]["output"]
    expected = rounded(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0), "bfloat16")
    np.testing.assert_array_equal(loaded, expected)


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(), "run python tests/draft_formats.py"


def test_convert_takes_gguf_files(target: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = FORMATS["GGUF, d2t of offsets"].write(tmp_path / "draft", SourceDraft(target))
    arguments = ["convert", "--input", str(path), "--output", str(tmp_path / "folder")]
    assert main(arguments) == 0 and "written to" in capsys.readouterr().out
    assert_source(_testing.load_draft_weights(str(tmp_path / "folder"), target.path), SourceDraft(target))
    assert main(arguments) == 2 and "holds files already" in capsys.readouterr().err
