"""Turns the GGUF file of an EAGLE-3 draft (general.architecture eagle3) into a Hugging Face directory.

Floating-point tensors keep their bits; quantised ones become bfloat16. The file's own traps are settled here: d2t holds
target ids in newer files and offsets in older ones, rows of q and k lie in llama.cpp's rope order, and llama3 rope is
a tensor of factors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.gguf_conversion import convert_gguf, unpermuted
from eagle31rt.gguf_file import gguf_architecture, gguf_errors, open_gguf
from eagle31rt.gguf_rope import ROPE_FREQUENCIES, rope_config
from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor, save_safetensors

ARCHITECTURE = "eagle3"
# Tensor of llama.cpp -> of the draft. attn_norm_2 and hidden_norm: newer and older files.
_NAMES = {
    "fc.weight": "fc.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
    "d2t": "d2t",
    "d2t.weight": "d2t",
    "blk.0.attn_norm.weight": "layers.0.input_layernorm.weight",
    "blk.0.attn_norm_2.weight": "layers.0.hidden_norm.weight",
    "blk.0.hidden_norm.weight": "layers.0.hidden_norm.weight",
    "blk.0.attn_q.weight": "layers.0.self_attn.q_proj.weight",
    "blk.0.attn_k.weight": "layers.0.self_attn.k_proj.weight",
    "blk.0.attn_v.weight": "layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "layers.0.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": "layers.0.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "layers.0.mlp.down_proj.weight",
}
_FC_NORM = re.compile(r"fc_norm\.\d+\.weight")
_ROPE_TENSORS = (ROPE_FREQUENCIES, f"blk.0.{ROPE_FREQUENCIES}")
# Keys below "eagle3." that are read here or in gguf_rope.py, and those that say nothing new.
_READ_KEYS = frozenset((
    "extract_layers", "target_hidden_size", "norm_before_residual", "fc_norm", "norm_output", "embedding_length",
    "feed_forward_length", "block_count", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "context_length", "vocab_size",
))  # fmt: skip
_STORED = {
    gguf.GGMLQuantizationType.F32: "F32",
    gguf.GGMLQuantizationType.F16: "F16",
    gguf.GGMLQuantizationType.BF16: "BF16",
}
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_INTEGERS = (gguf.GGMLQuantizationType.I64, gguf.GGMLQuantizationType.I32)
_SURE_OF_NEIGHBOURS = 64  # see target_offsets


class _Metadata:
    """The keys of one file, with errors that name file and key."""

    def __init__(self, source: Path, values: dict[str, Any]) -> None:
        self.source = source
        self.values = values

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"{ARCHITECTURE}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.source}: key {ARCHITECTURE}.{key} is {value!r}, not a positive integer")
        return int(value)

    def boolean(self, key: str) -> bool:
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.source}: key {ARCHITECTURE}.{key} is {value!r}, not true or false")
        return value


def convert_gguf_file(source: Path, directory: Path, on_tensor: Callable[[int, int], None]) -> None:
    """Writes the draft or else the llama model in `source` to the existing `directory`. Raises as those two do."""
    convert = convert_gguf_draft if gguf_architecture(source) == ARCHITECTURE else convert_gguf
    convert(source, directory, on_tensor)


def convert_gguf_draft(source: Path, directory: Path, on_tensor: Callable[[int, int], None] | None = None) -> None:
    """Writes the draft in `source` to the existing `directory`. `on_tensor(done, total)` reports progress.

    Raises CheckpointError for a broken file and UnsupportedError for what no draft of this version has, each with the
    name of the file and of the tensor or key.
    """
    with gguf_errors(source):
        _convert(source, directory, on_tensor)


def _convert(source: Path, directory: Path, on_tensor: Callable[[int, int], None] | None) -> None:
    metadata, reader = _open(source)
    tensors: dict[str, RawTensor] = {}
    frequencies: npt.NDArray[np.float32] | None = None
    for index, tensor in enumerate(reader.tensors):
        if tensor.name in _ROPE_TENSORS:
            frequencies = np.asarray(tensor.data, dtype=np.float32).reshape(-1)
        else:
            name = _canonical_name(tensor.name, source)
            if name in tensors:
                raise CheckpointError(f"{source}: tensor {tensor.name!r} is the second {name!r}")
            tensors[name] = _converted(tensor, metadata)
        if on_tensor is not None:
            on_tensor(index + 1, len(reader.tensors))
    if "fc.weight" not in tensors:
        raise CheckpointError(f"{source} lacks tensor 'fc.weight': it is no EAGLE-3 draft")
    config = draft_config(metadata, tensors, frequencies)
    if "d2t" in tensors:
        tensors["d2t"] = _offset_tensor(tensors["d2t"], int(config["vocab_size"]), source)
    save_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _open(source: Path) -> tuple[_Metadata, gguf.GGUFReader]:
    values, reader = open_gguf(source)
    architecture = values.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"{source}: general.architecture is {architecture!r}; as a draft only {ARCHITECTURE!r} is supported"
        )
    metadata = _Metadata(source, values)
    for key in values:
        short = key.removeprefix(f"{ARCHITECTURE}.")
        if short != key and short not in _READ_KEYS and not short.startswith("rope."):
            raise UnsupportedError(f"{source}: key {key} is not supported")
    if metadata.integer("block_count") != 1:
        raise UnsupportedError(f"{source}: {ARCHITECTURE}.block_count is {metadata.get('block_count')}; only 1 is read")
    return metadata, reader


def _canonical_name(name: str, source: Path) -> str:
    if _FC_NORM.fullmatch(name):
        return name
    if name not in _NAMES:
        raise UnsupportedError(f"{source}: tensor {name!r} is not one of an EAGLE-3 draft")
    return _NAMES[name]


def _converted(tensor: gguf.ReaderTensor, metadata: _Metadata) -> RawTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if tensor.name.startswith("d2t"):
        if tensor.tensor_type not in _INTEGERS:
            raise CheckpointError(f"{metadata.source}: tensor {tensor.name!r} is {tensor.tensor_type.name}, not I64")
        return RawTensor("I64", shape, np.asarray(tensor.data, dtype=np.int64).tobytes())
    if tensor.tensor_type in _INTEGERS:
        raise CheckpointError(f"{metadata.source}: tensor {tensor.name!r} holds integers")
    dtype = _STORED.get(tensor.tensor_type)
    # bfloat16 lies in the file as bytes; whole rows move, so that does not matter.
    values = np.asarray(tensor.data) if dtype else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    for name, key in ((".attn_q.", "attention.head_count"), (".attn_k.", "attention.head_count_kv")):
        if name in tensor.name:
            heads = metadata.integer(key)
            if len(shape) != 2 or shape[0] % (2 * heads) != 0:
                raise CheckpointError(
                    f"{metadata.source}: tensor {tensor.name!r} has shape {list(shape)}, and {key} is {heads}"
                )
            values = unpermuted(values, heads)
    if dtype is None:
        return bfloat16_tensor(values.astype(np.float32))
    return RawTensor(dtype, shape, values.tobytes())


def draft_config(
    metadata: _Metadata, tensors: dict[str, RawTensor], frequencies: npt.NDArray[np.float32] | None
) -> dict[str, Any]:
    """config.json of the draft, in the flat form; eagle3.extract_layers become its layer ids as they are."""
    heads, hidden = metadata.integer("attention.head_count"), metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", metadata.get("rope.dimension_count", hidden // heads))
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{metadata.source}: {ARCHITECTURE}.attention.value_length differs from key_length")
    vocab_size = _vocab_size(metadata, tensors)
    drafted = [tensors[name].shape[0] for name in ("d2t", "lm_head.weight") if name in tensors]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": metadata.integer("target_hidden_size", hidden),
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "draft_vocab_size": drafted[0] if drafted else vocab_size,
        "max_position_embeddings": metadata.integer("context_length"),
        # The file stores the nearest float32 (9.99999975e-06 for 1e-05): print it back with its own precision.
        "rms_norm_eps": float(str(np.float32(metadata.get("attention.layer_norm_rms_epsilon", 1e-6)))),
        "torch_dtype": _DTYPE_NAMES[tensors["fc.weight"].dtype],
        **rope_config(metadata.source, metadata.values, head_dim, frequencies),
    }
    for switch in ("norm_before_residual", "fc_norm", "norm_output"):
        config[switch] = metadata.boolean(switch)
    layers = metadata.get("extract_layers")
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise CheckpointError(
            f"{metadata.source}: key {ARCHITECTURE}.extract_layers is {layers!r}, no list of integers"
        )
    config["eagle_aux_hidden_state_layer_ids"] = layers
    return config


def _vocab_size(metadata: _Metadata, tensors: dict[str, RawTensor]) -> int:
    """Of the target: the key, the embedding's rows, or the tokenizer's tokens, which the converter always copies."""
    if metadata.get("vocab_size") is not None:
        return metadata.integer("vocab_size")
    if "embed_tokens.weight" in tensors:
        return tensors["embed_tokens.weight"].shape[0]
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(
            f"{metadata.source} does not say how many tokens the target has: it lacks {ARCHITECTURE}.vocab_size, "
            "token_embd.weight and tokenizer.ggml.tokens"
        )
    return len(tokens)


def _offset_tensor(tensor: RawTensor, vocab_size: int, source: Path) -> RawTensor:
    offsets = target_offsets(np.frombuffer(tensor.data, dtype="<i8"), vocab_size, str(source))
    return RawTensor("I64", tensor.shape, offsets.astype("<i8").tobytes())


def target_offsets(values: npt.NDArray[np.int64], vocab_size: int, source: str) -> npt.NDArray[np.int64]:
    """d2t as offsets (target id - draft id), whichever of offsets and target ids `values` holds.

    Target ids ascend strictly. Offsets do so only if no two neighbouring ids are drafted, which a draft vocabulary of
    Vd out of V ids happens to have with a chance of about exp(-Vd^2 / V): below 1e-27 for Vd^2 / V >= 64, nothing for
    32000 of 128256. A smaller vocabulary that could be either is refused with CheckpointError.
    """
    count = len(values)
    steps = np.diff(values)
    if count == 0 or not np.all(steps > 0):
        return values
    could_be_offsets = int(values[-1]) + count - 1 < vocab_size
    if could_be_offsets and count * count < _SURE_OF_NEIGHBOURS * vocab_size:
        raise CheckpointError(
            f"{source}: tensor 'd2t' ({count} of {vocab_size} tokens) can hold target ids (newer files) or offsets "
            "(older ones); convert the draft's safetensors form instead"
        )
    return values - np.arange(count, dtype=np.int64)
