"""`eagle31rt train --attention`: latent heads for targets with and without such an attention, and grouped ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import DraftSpec, write_draft, write_target
from support.draft_formats import FORMATS, GRAPHS, TARGET, SourceDraft
from support.engine import run_draft
from support.successor import TARGET as SUCCESSOR
from support.tensors import stored, write_directory
from support.training import train_arguments, write_training_target

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

from eagle31rt import LLM, SamplingParams  # noqa: E402
from eagle31rt.cli import main  # noqa: E402
from eagle31rt.training import trainer as trainer_module  # noqa: E402
from eagle31rt.training.attention import GroupedSizes  # noqa: E402
from eagle31rt.training.export import draft_config, export_head  # noqa: E402
from eagle31rt.training.latent_attention import LatentSizes  # noqa: E402
from eagle31rt.training.load import load_head  # noqa: E402
from eagle31rt.training.settings import HeadSettings  # noqa: E402
from eagle31rt.training.sizes import head_sizes  # noqa: E402
from eagle31rt.training.target import TargetSizes, TargetTensors  # noqa: E402

pytestmark = pytest.mark.dev

KIMI_ROPE = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0}
KIMI_ROPE |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
KIMI = {  # Kimi K2.6's text part
    "model_type": "kimi_k2",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,  # as transformers writes it: of the rope part
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": KIMI_ROPE,
    "bos_token_id": 163584,
}
LATENT_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("latent")
    # Random experts at DeepSeek's scale would drown what a head can learn.
    latent = replace(SUCCESSOR, model_type="deepseek_v3", config={"routed_scaling_factor": 0.3})
    return {
        "deepseek": write_training_target(folder / "deepseek", latent),
        "llama": write_training_target(folder / "llama"),
    }


def config_of(output: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((output / "config.json").read_text())
    return config


def weights(output: Path) -> bytes:
    return (output / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("name", "attention"), [("deepseek", "auto"), ("llama", "mla")])
def test_a_latent_head_learns_and_is_served(
    targets: dict[str, Path], tmp_path: Path, name: str, attention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Acceptance length of at least 2.8 of 6, well above that of the closed-form start; the same ids as without."""
    target, output = targets[name], tmp_path / "draft"
    options = {"attention": attention, "self_generate": 128}
    assert main(train_arguments(target, output, **options, steps=1)) == 0
    assert main(train_arguments(target, output, "--resume", **options, epochs=3)) == 0
    lines = (tmp_path / "draft.work" / "log.jsonl").read_text().splitlines()
    first, last = (json.loads(line)["acceptance"]["length"] for line in lines)
    assert last >= 2.8 and last > first + 0.8, (first, last)
    config = config_of(output)
    assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
    wanted = (24, 32, 16, 8, 16) if name == "deepseek" else (64, 64, 16, 8, 16)
    assert tuple(config[key] for key in LATENT_KEYS) == wanted
    capsys.readouterr()
    assert main(["check", str(target), str(output)]) == 0, capsys.readouterr().out
    llm = LLM(
        target,
        speculative_config={"method": "eagle3", "model": output, "num_speculative_tokens": 5},
        num_threads=1,
    )
    params = [SamplingParams(temperature=t, max_tokens=40, seed=3, ignore_eos=True) for t in (0.0, 0.0, 0.8)]
    prompts = ["abc de", "f", "ghij"]
    plain = LLM(target, num_threads=1).generate(prompts, params)
    speculative = llm.generate(prompts, params)
    assert [o.outputs[0].token_ids for o in speculative] == [o.outputs[0].token_ids for o in plain]
    assert speculative[0].metrics.acceptance_length > 2.0


def test_an_interrupted_latent_run_resumes_to_the_same_bits(
    targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert main(train_arguments(targets["deepseek"], whole, steps=8)) == 0
    add = trainer_module.Figures.add
    steps = iter(range(1, 4))

    def interrupting(self: Any, losses: Any, steps: Iterator[int] = steps) -> None:
        add(self, losses)
        if next(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module.Figures, "add", interrupting)
    arguments = train_arguments(targets["deepseek"], halves, steps=8, checkpoint_minutes=0)
    assert main(arguments) == 130
    monkeypatch.setattr(trainer_module.Figures, "add", add)
    assert main([*arguments, "--resume"]) == 0
    assert weights(halves) == weights(whole)
    assert b"kv_a_proj_with_mqa" in weights(whole)


def test_a_grouped_head_for_a_latent_target(
    targets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its heads are as wide as the target's values; another attention needs another work folder."""
    target, output = targets["deepseek"], tmp_path / "draft"
    assert main(train_arguments(target, output, steps=2, attention="gqa")) == 0
    config = config_of(output)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and "kv_lora_rank" not in config
    assert (config["num_key_value_heads"], config["head_dim"]) == (4, 16)
    assert main(["check", str(target), str(output)]) == 0
    capsys.readouterr()
    assert main(train_arguments(target, output, "--resume", steps=2, attention="mla")) == 2
    assert "the checkpoint was made with attention = 'gqa', not 'mla'" in capsys.readouterr().err


def test_auto_is_the_targets_attention(targets: dict[str, Path]) -> None:
    settings = HeadSettings(capture_layers=(1, 2, 4))
    assert isinstance(head_sizes(settings, TargetSizes.read(targets["llama"])).attention, GroupedSizes)
    sizes = head_sizes(settings, TargetSizes.read(targets["deepseek"]))
    assert sizes.attention == LatentSizes(24, 32, 16, 8, 16) and sizes.rope.interleaved


@pytest.mark.parametrize(
    ("head_dim", "hidden_size", "wanted"),
    [
        (128, 4096, (1536, 512, 128, 64, 128)),  # as the published MLA draft of Qwen3-8B
        (64, 576, (576, 256, 64, 32, 64)),
        (256, 1152, (1152, 512, 256, 64, 256)),
        (12, 60, (56, 48, 8, 8, 8)),
    ],
)
def test_sizes_for_a_target_without_latent_attention(head_dim: int, hidden_size: int, wanted: tuple[int, ...]) -> None:
    assert tuple(asdict(LatentSizes.like(head_dim, hidden_size)).values()) == wanted


def test_the_head_of_kimi_is_the_published_one(tmp_path: Path) -> None:
    """Sizes, YaRN and layer ids of eagle31_spec 2.5, from a config with the text model inside."""
    config = {"model_type": "kimi_k25", "torch_dtype": "bfloat16", "eos_token_id": 163585, "text_config": KIMI}
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = TargetSizes.read(tmp_path)
    sizes = head_sizes(HeadSettings(draft_vocab_size=163840), target)
    exported = draft_config(sizes, target)
    assert [exported[key] for key in LATENT_KEYS] == [1536, 512, 128, 64, 128]
    wanted = {"model_type": "kimi_k2", "num_key_value_heads": 64, "hidden_size": 7168, "intermediate_size": 18432}
    wanted |= {"rope_theta": 50000.0, "eagle_aux_hidden_state_layer_ids": [2, 30, 58], "eos_token_id": 163585}
    assert wanted.items() <= exported.items() and "head_dim" not in exported
    rope = {("rope_type" if key == "type" else key): value for key, value in KIMI_ROPE.items()}
    assert exported["rope_scaling"] == rope
    grouped = head_sizes(HeadSettings(attention="gqa"), target)
    assert grouped.attention == GroupedSizes(64, 128) and grouped.rope.yarn is None


def test_tensors_of_a_text_model_inside_another_are_found(tmp_path: Path) -> None:
    tiny = write_target(tmp_path / "plain", SUCCESSOR)
    inside = {
        "language_model." + ("" if name.startswith("lm_head") else "model.") + name: stored(values, "float32")
        for name, values in tiny.weights.items()
    }
    write_directory(tmp_path / "inside", tiny.config, inside)
    plain, found = TargetTensors.read(tmp_path / "plain"), TargetTensors.read(tmp_path / "inside")
    for name in ("embedding", "head", "norm"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name


def test_the_export_is_torchspecs(tmp_path: Path) -> None:
    """A TorchSpec file through load and export drafts with the same bits, under the same names."""
    target = write_target(tmp_path / "target", TARGET, seed=1)
    source = FORMATS["TorchSpec"].write(tmp_path / "source", SourceDraft(target, GRAPHS["latent attention"]))
    tensors = load_file(source / "model.safetensors")
    del tensors["embed_tokens.weight"]  # the target's
    save_file(tensors, source / "model.safetensors")
    sizes = TargetSizes.read(target.directory)
    head, kept = load_head(source, sizes, TargetTensors.read(target.directory), max_tokens=64)
    exported = tmp_path / "exported"
    export_head(exported, head, kept, sizes)
    assert load_file(exported / "model.safetensors").keys() == tensors.keys()
    given, own = config_of(source), config_of(exported)
    chosen = ("architectures", "model_type", "rope_theta", "num_key_value_heads", *LATENT_KEYS)
    assert {key: own[key] for key in chosen} == {key: given[key] for key in chosen}
    tokens = [5, 9, 33, 70, 12, 8, 41]
    logits, ids = run_draft(target.directory, exported, tokens, 4)
    expected, expected_ids = run_draft(target.directory, source, tokens, 4)
    assert logits.tobytes() == expected.tobytes() and ids == expected_ids


@pytest.mark.parametrize("given", [{"mscale": 1.0, "mscale_all_dim": 1.0}, {}, {"truncate": False}])
def test_yarn_survives_the_export(tmp_path: Path, given: dict[str, Any]) -> None:
    """A key that the draft does not have is not written either: vLLM reads mscale 0 as another angle than none."""
    target = write_target(tmp_path / "target", TARGET, seed=1)
    rope = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 8, **given}
    spec = DraftSpec(graph="deepseek", draft_vocab_size=40, rope_scaling=rope, rope_theta=70.0, dtype="bfloat16")
    draft = write_draft(tmp_path / "draft", target, spec).directory
    sizes = TargetSizes.read(target.directory)
    head, kept = load_head(draft, sizes, TargetTensors.read(target.directory), max_tokens=64)
    export_head(tmp_path / "exported", head, kept, sizes)
    tokens = list(range(3, 40))
    logits, _ = run_draft(target.directory, tmp_path / "exported", tokens, 4)
    assert logits.tobytes() == run_draft(target.directory, draft, tokens, 4)[0].tobytes()
    config = config_of(tmp_path / "exported")
    assert config["rope_scaling"].keys() == {*rope, "beta_fast", "beta_slow"}
    shutil.copytree(tmp_path / "exported", tmp_path / "unscaled")
    (tmp_path / "unscaled" / "config.json").write_text(json.dumps({**config, "rope_scaling": None}))
    assert logits.tobytes() != run_draft(target.directory, tmp_path / "unscaled", tokens, 4)[0].tobytes()


def test_other_rope_types_are_not_read_as_plain(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET)
    draft = write_draft(
        tmp_path / "draft", target, DraftSpec(head_dim=8, rope_scaling={"type": "linear", "factor": 2.0})
    )
    with pytest.raises(Exception, match="rope type 'linear' is not supported"):
        load_head(draft.directory, TargetSizes.read(target.directory), TargetTensors.read(target.directory), 64)
