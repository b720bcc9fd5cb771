"""gemma3: the text part of the multimodal model, what published files leave out, and refusals. test_families.py has the
logits of the text model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine import make_engine, run_decoder
from support.families import FAMILIES, write_family

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError

PROMPT = list(range(3, 43))
# text_config of google/gemma-3-4b-it: everything else is a default of transformers' Gemma3TextConfig.
GEMMA_3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


def parse(**changes: object) -> dict[str, Any]:
    return _testing.parse_decoder_config(json.dumps({**GEMMA_3_4B, **changes}).encode(), b"")


def test_what_published_files_leave_out() -> None:
    config = parse(torch_dtype="bfloat16")
    assert (config["vocab_size"], config["num_heads"], config["num_kv_heads"], config["head_dim"]) == (
        262208,
        8,
        4,
        256,
    )
    assert config["max_position_embeddings"] == 131072 and config["tie_word_embeddings"]
    assert (config["rope"]["kind"], config["rope"]["theta"], config["rope"]["factor"]) == ("linear", 1e6, 8.0)


def test_the_text_part_is_the_plain_model(tmp_path: Path) -> None:
    family = FAMILIES["gemma3_text"]
    write_family(tmp_path / "plain", family)
    whole = replace(family, text_part="gemma3", prefix="language_model.model.")
    write_family(tmp_path / "whole", whole)
    expected, _ = run_decoder(tmp_path / "plain", PROMPT)
    found, _ = run_decoder(tmp_path / "whole", PROMPT)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_activation": "relu"}, UnsupportedError, '"hidden_activation" is "relu"; only "gelu_pytorch_tanh"'),
        ({"use_bidirectional_attention": True}, UnsupportedError, "an embedding model is not supported"),
        ({"final_logit_softcapping": 30.0}, UnsupportedError, "softcapping is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, CheckpointError, "no sliding_attention"),
        ({"query_pre_attn_scalar": 0}, CheckpointError, "query_pre_attn_scalar"),
        ({"rope_scaling": {"rope_type": "longrope"}}, UnsupportedError, "longrope"),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse(**changes)


def test_a_norm_is_not_a_plain_one(tmp_path: Path) -> None:
    """A gemma3 file under another family's name lacks nothing of a llama but has more norms: refused by tensor name."""
    checkpoint = write_family(tmp_path, FAMILIES["gemma3_text"])
    config = {**checkpoint.config, "model_type": "qwen3", "hidden_act": "silu", "layer_types": None}
    config = {key: value for key, value in config.items() if value is not None and not key.startswith("rope_local")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="pre_feedforward_layernorm"):
        make_engine(tmp_path)
