"""Checkpoints as published of Kimi K2.5 and K2.6, a text model inside a multimodal one, and of DeepSeek-V3 with its
layers for multi-token prediction: what is not the text decoder's is not read, what is has the bits of the plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import TargetSpec, target_config, target_weights, write_target
from support.engine import make_engine, random_prompt, run_decoder
from support.quantised import int4_config, is_routed_expert, packed_int4, quantise_weights
from support.tensors import stored, write_directory

from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor

SPEC = TargetSpec(model_type="deepseek_v3", num_layers=3, eos_token_id=3)
PROMPT = random_prompt(30)
VISION = {
    "vision_tower.encoder.blocks.0.wqkv.weight": RawTensor("I8", (2, 3), bytes(6)),
    "mm_projector.proj.0.weight": RawTensor("F32", (1,), bytes(4)),
}


def write_kimi(directory: Path, root: dict[str, Any] | None = None, text: dict[str, Any] | None = None) -> None:
    """Packed experts under `language_model.`; the twin with their values beside it."""
    tensors, twin = quantise_weights(target_weights(SPEC, seed=6), is_routed_expert, packed_int4())
    plain = {name: stored(values, "float32") for name, values in twin.items()}
    kept = {name: tensor for name, tensor in plain.items() if not is_routed_expert(name)} | tensors
    names = {name: "language_model." + ("" if name.startswith("lm_head") else "model.") + name for name in kept}
    text_config = {
        **target_config(SPEC),
        "model_type": "kimi_k2",
        "num_nextn_predict_layers": 0,
        "quantization_config": int4_config(),
        **(text or {}),
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {key: value for key, value in text_config.items() if value is not None},
        "vision_config": {"model_type": "kimi_k25_vision"},
        **(root or {}),
    }
    write_directory(directory / "kimi", config, {names[name]: kept[name] for name in kept} | VISION)
    write_directory(directory / "twin", target_config(SPEC), plain)


def test_the_text_part_is_the_plain_model(tmp_path: Path) -> None:
    write_kimi(tmp_path)
    expected, _ = run_decoder(tmp_path / "twin", PROMPT)
    found, _ = run_decoder(tmp_path / "kimi", PROMPT)
    assert found.tobytes() == expected.tobytes()
    assert make_engine(tmp_path / "kimi").info["eos_token_ids"] == [3]


def test_the_whole_states_what_the_text_part_does_not(tmp_path: Path) -> None:
    root = {"quantization_config": int4_config(), "torch_dtype": "bfloat16", "eos_token_id": 7}
    write_kimi(tmp_path, root, {"quantization_config": None, "torch_dtype": None})
    info = make_engine(tmp_path / "kimi").info
    assert info["dtype"] == "bfloat16" and info["eos_token_ids"] == [3, 7]


def test_a_wrapper_without_its_text_part_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, {"model_type": "kimi_k25"}, VISION)
    with pytest.raises(CheckpointError, match=r"lacks \"text_config\""):
        make_engine(tmp_path)
    write_directory(tmp_path, {"model_type": "kimi_k25", "text_config": {"model_type": "kimi_linear"}}, VISION)
    with pytest.raises(UnsupportedError, match=r"model_type \"kimi_linear\" is not supported; supported are"):
        make_engine(tmp_path)


def write_with_next_token_layer(directory: Path, index: int, count: int) -> None:
    tiny = write_target(directory, SPEC, seed=6)
    tensors = {("" if name.startswith("lm_head") else "model.") + name: stored(values, "float32")
               for name, values in tiny.weights.items()}  # fmt: skip
    for name in ("eh_proj.weight", "enorm.weight", "shared_head.head.weight", "mlp.experts.0.up_proj.weight"):
        tensors[f"model.layers.{index}.{name}"] = stored(np.ones((2, 3), np.float32), "float32")
    write_directory(directory, {**tiny.config, "num_nextn_predict_layers": count}, tensors)


def test_layers_for_multi_token_prediction_are_not_read(tmp_path: Path) -> None:
    write_target(tmp_path / "plain", SPEC, seed=6)
    write_with_next_token_layer(tmp_path / "published", index=3, count=1)
    expected, _ = run_decoder(tmp_path / "plain", PROMPT)
    found, _ = run_decoder(tmp_path / "published", PROMPT)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("index", "count"), [(3, 0), (4, 1)])
def test_other_layers_behind_the_last_are_refused(tmp_path: Path, index: int, count: int) -> None:
    write_with_next_token_layer(tmp_path, index, count)
    with pytest.raises(CheckpointError, match=rf"does not ask for: \"model.layers.{index}.eh_proj"):
        make_engine(tmp_path)
