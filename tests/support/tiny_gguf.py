"""A tiny llama model as a GGUF file, as llama.cpp's converter would write it from given weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from support.tiny_tokenizer import SPECIAL, byte_tokens

Array = np.ndarray
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, LAYERS = 4, 2, 8, 32, 48, 2
_NAMES = {
    "self_attn.q_proj": ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
    "mlp.gate_proj": ("ffn_gate", (INTERMEDIATE, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (INTERMEDIATE, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, INTERMEDIATE)),
    "input_layernorm": ("attn_norm", (HIDDEN,)),
    "post_attention_layernorm": ("ffn_norm", (HIDDEN,)),
}


def permuted(rows: Array, num_heads: int) -> Array:
    """llama.cpp's order: within a head, row 2i is old row i and row 2i + 1 is old row i + head_dim / 2."""
    head_dim = rows.shape[0] // num_heads
    order = np.arange(head_dim).reshape(2, -1).T.reshape(-1)
    return np.concatenate([rows[head * head_dim :][order] for head in range(num_heads)])


def write_tiny_gguf(
    path: Path, architecture: str = "llama", rope_frequencies: Array | None = None, rope_scaling: str = "none"
) -> dict[str, Array]:
    """Returns the weights by their Hugging Face names, in Hugging Face's row order.

    rope_frequencies: the table [HEAD_DIM / 2] of llama3 rope.
    """
    random = np.random.default_rng(3)
    tokens = [*SPECIAL, *byte_tokens()[:-1], "ab"]
    weights: dict[str, Array] = {}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    if rope_scaling != "none":
        writer.add_string(f"{architecture}.rope.scaling.type", rope_scaling)
        writer.add_rope_scaling_factor(4.0)
    if rope_frequencies is not None:
        writer.add_tensor("rope_freqs.weight", rope_frequencies.astype(np.float32))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)

    def add(name: str, file_name: str, shape: tuple[int, ...]) -> None:
        values = weights[name] = random.standard_normal(shape).astype(np.float32)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(file_name.split(".")[-2])
        writer.add_tensor(file_name, values if heads is None else permuted(values, heads))

    add("model.embed_tokens.weight", "token_embd.weight", (len(tokens), HIDDEN))
    add("model.norm.weight", "output_norm.weight", (HIDDEN,))
    for layer in range(LAYERS):
        for name, (file_name, shape) in _NAMES.items():
            add(f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{file_name}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
