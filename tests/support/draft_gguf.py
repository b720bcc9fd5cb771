"""A draft as the GGUF file that llama.cpp's converter would write (architecture eagle3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.tensors import Array, stored
from support.tiny_gguf import permuted

_NAMES = {
    "fc.weight": "fc.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "d2t": "d2t",
}


def write_draft_gguf(
    path: Path,
    layer: Mapping[str, Any],
    weights: Mapping[str, Array],
    extract_layers: list[int],
    switches: Mapping[str, bool],
    *,
    keys: Mapping[str, float | str] | None = None,
    tensors: Mapping[str, Array] | None = None,
    raw: Mapping[str, tuple[Array, gguf.GGMLQuantizationType]] | None = None,
    architecture: str = "eagle3",
) -> None:
    """Matrices as BF16, norms as F32. `keys` below eagle3. are added or replaced; `raw`: quantised tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(layer["max_position_embeddings"])
    writer.add_embedding_length(layer["hidden_size"])
    writer.add_feed_forward_length(layer["intermediate_size"])
    writer.add_head_count(layer["num_attention_heads"])
    writer.add_head_count_kv(layer["num_key_value_heads"])
    writer.add_key_length(layer["head_dim"])
    writer.add_value_length(layer["head_dim"])
    writer.add_rope_dimension_count(layer["head_dim"])
    writer.add_rope_freq_base(layer["rope_theta"])
    writer.add_layer_norm_rms_eps(layer["rms_norm_eps"])
    writer.add_token_list([f"token{i}" for i in range(layer["vocab_size"])])
    writer.add_array("eagle3.extract_layers", extract_layers)
    writer.add_uint32("eagle3.target_hidden_size", layer["target_hidden_size"])
    for name, value in {**switches, **(keys or {})}.items():
        _set_key(writer, f"eagle3.{name}", value)
    heads = {"q_proj": layer["num_attention_heads"], "k_proj": layer["num_key_value_heads"]}
    for name, values in weights.items():
        if name != "t2d":
            count = heads.get(name.split(".")[-2] if "." in name else "")
            _add(writer, _NAMES.get(name, name), values if count is None else permuted(values, count))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    for name, (values, kind) in (raw or {}).items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _set_key(writer: gguf.GGUFWriter, key: str, value: float | str) -> None:
    kinds = {bool: "BOOL", str: "STRING", float: "FLOAT32", int: "UINT32"}
    kind = gguf.GGUFValueType[kinds[type(value)]]
    writer.add_key_value(key, value, kind)  # replaces a key that is there


def _add(writer: gguf.GGUFWriter, name: str, values: Array) -> None:
    if values.ndim != 2:
        writer.add_tensor(name, values)
        return
    raw = np.frombuffer(stored(values, "bfloat16").data, dtype=np.uint8).reshape(values.shape[0], -1)
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
