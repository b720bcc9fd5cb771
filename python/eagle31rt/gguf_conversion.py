"""Turns a llama-family GGUF file into a Hugging Face directory: bfloat16 weights, config and tokenizer.

The tokenizer is the byte-level BPE that `transformers` builds from the same metadata, so that ids agree with it. (The
original SmolLM2 tokenizer also splits off digits first; that differs only in runs of spaces before a digit.)
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

from eagle31rt.errors import CheckpointError
from eagle31rt.gguf_file import gguf_errors, open_gguf
from eagle31rt.gguf_rope import ROPE_FREQUENCIES, rope_config
from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor, save_safetensors

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_CONTROL_TOKEN = 3  # llama.cpp's token type of special tokens

Metadata = dict[str, Any]


def convert_gguf(source: Path, directory: Path, on_tensor: Callable[[int, int], None]) -> None:
    """Writes the model in `source` to the existing `directory`. `on_tensor(done, total)` reports progress.

    Raises CheckpointError if the file is damaged or is not a llama-family model with a byte-level BPE tokenizer, and
    UnsupportedError for a quantisation that the gguf library does not read.
    """
    with gguf_errors(source):
        metadata, reader = open_gguf(source)
        _convert(metadata, reader, directory, on_tensor, source)


def _convert(
    metadata: Metadata,
    reader: gguf.GGUFReader,
    directory: Path,
    on_tensor: Callable[[int, int], None],
    source: Path,
) -> None:
    if metadata.get("general.architecture") != "llama" or metadata.get("tokenizer.ggml.model") != "gpt2":
        raise CheckpointError(f"{source}: only llama models with a gpt2 (byte-level BPE) tokenizer can be converted")
    tensors: dict[str, RawTensor] = {}
    frequencies: npt.NDArray[np.float32] | None = None
    for index, tensor in enumerate(reader.tensors):
        if tensor.name == ROPE_FREQUENCIES:
            frequencies = np.asarray(tensor.data, dtype=np.float32).reshape(-1)
        else:
            tensors[hugging_face_name(tensor.name)] = bfloat16_tensor(_dequantised(tensor, metadata))
        on_tensor(index + 1, len(reader.tensors))
    save_safetensors(directory / "model.safetensors", dict(sorted(tensors.items())))
    config = model_config(metadata, tied="lm_head.weight" not in tensors)
    config |= rope_config(source, metadata, config["head_dim"], frequencies)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _special_ids(metadata))
    write_tokenizer(metadata, directory)


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of a llama.cpp tensor; CheckpointError for an unknown one."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_PATTERN.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise CheckpointError(f"unexpected tensor {name!r} in the GGUF file")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def _dequantised(tensor: gguf.ReaderTensor, metadata: Metadata) -> npt.NDArray[np.float32]:
    values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if ".attn_q." in tensor.name:
        return unpermuted(values, int(metadata["llama.attention.head_count"]))
    if ".attn_k." in tensor.name:
        return unpermuted(values, int(metadata["llama.attention.head_count_kv"]))
    return values


def unpermuted(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undoes llama.cpp's row order of q and k [num_heads * head_dim, hidden]: rope pairs to split halves."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def model_config(metadata: Metadata, tied: bool) -> dict[str, Any]:
    """config.json of the model, without its rope."""
    epsilon = float(metadata["llama.attention.layer_norm_rms_epsilon"])
    num_heads = int(metadata["llama.attention.head_count"])
    hidden_size = int(metadata["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata["llama.attention.head_count_kv"]),
        "head_dim": int(metadata.get("llama.rope.dimension_count", hidden_size // num_heads)),
        "hidden_act": "silu",
        "vocab_size": int(metadata.get("llama.vocab_size", len(metadata["tokenizer.ggml.tokens"]))),
        "max_position_embeddings": int(metadata["llama.context_length"]),
        # The file stores the nearest float32 (9.99999975e-06 for 1e-05): print it back with its own precision.
        "rms_norm_eps": float(str(np.float32(epsilon))),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        **_special_ids(metadata),
    }


def _special_ids(metadata: Metadata) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    keys = {key: f"tokenizer.ggml.{name}_token_id" for key, name in names.items()}
    return {key: int(metadata[name]) for key, name in keys.items() if name in metadata}


def write_tokenizer(metadata: Metadata, directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (special tokens and chat template)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    left_and_right = (merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"])
    merges = [(left, right) for left, right in left_and_right]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        bos_id = int(metadata["tokenizer.ggml.bos_token_id"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos_id]} $A", special_tokens=[(tokens[bos_id], bos_id)]
        )
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    ids = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {
        key: tokens[int(metadata[f"tokenizer.ggml.{name}_token_id"])]
        for key, name in ids.items()
        if f"tokenizer.ggml.{name}_token_id" in metadata
    }
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = int(metadata["llama.context_length"])
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    _write_json(directory / "tokenizer_config.json", config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
