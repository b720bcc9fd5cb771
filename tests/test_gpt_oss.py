"""gpt_oss: fused experts with biases and a clamped swiglu, sinks, a window in every second layer; logits of
transformers, MXFP4 experts equal to the values that they stand for, and no bit that depends on chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, TinyCheckpoint, write_draft
from support.engine import Request, endless, make_engine, plain_outcome, random_prompt, run_decoder, serve
from support.random_weights import RandomWeights
from support.tensors import Array, RawTensor, stored, write_directory
from support.transformers_logits import transformers_logits

LAYERS, HIDDEN, WIDTH, EXPERTS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4, 64, 32, 6, 4, 2, 16, 96
PROMPT = random_prompt(70)


def config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "attention_bias": True,
        "swiglu_limit": 1.5,  # inputs of a tiny model lie on both sides
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": 2,
        **changes,
    }


def attention(random: RandomWeights) -> dict[str, Array]:
    rows = {"q_proj": HEADS * HEAD_DIM, "k_proj": KV_HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}
    tensors = {f"self_attn.{name}.weight": random.matrix(size, HIDDEN) for name, size in rows.items()}
    tensors |= {f"self_attn.{name}.bias": random.bias(size) for name, size in rows.items()}
    tensors["self_attn.o_proj.weight"] = random.matrix(HIDDEN, HEADS * HEAD_DIM)
    tensors["self_attn.o_proj.bias"] = random.bias(HIDDEN)
    tensors["self_attn.sinks"] = random.bias(HEADS) * 5
    return tensors


def fp4(blocks: np.ndarray, scales: np.ndarray) -> Array:
    """Values [experts, rows, columns] of MXFP4 blocks [.., columns / 32, 16] and scales [.., columns / 32]."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    values = np.where(codes >= 8, -1, 1).astype(np.float32) * magnitudes[codes & 7]
    values *= np.exp2(scales.astype(np.float32) - 127)[..., None]
    return values.reshape(*scales.shape[:-1], -1)


def write(directory: Path, mxfp4: bool, seed: int = 4) -> None:
    """The same model with its experts in MXFP4 or in float32."""
    random, bits = RandomWeights(seed), np.random.default_rng(seed)
    tensors: dict[str, RawTensor] = {}

    def add(name: str, values: Array) -> None:
        tensors[name] = stored(values, "float32")

    add("model.embed_tokens.weight", random.embedding(VOCAB, HIDDEN))
    add("model.norm.weight", random.norm(HIDDEN))
    add("lm_head.weight", random.matrix(VOCAB, HIDDEN))
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, values in attention(random).items():
            add(prefix + name, values)
        add(prefix + "input_layernorm.weight", random.norm(HIDDEN))
        add(prefix + "post_attention_layernorm.weight", random.norm(HIDDEN))
        add(prefix + "mlp.router.weight", random.matrix(EXPERTS, HIDDEN))
        add(prefix + "mlp.router.bias", random.bias(EXPERTS))
        for name, rows, columns in (("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
            full = f"{prefix}mlp.experts.{name}"
            add(full + "_bias", np.stack([random.bias(rows) for _ in range(EXPERTS)]))
            blocks = bits.integers(0, 256, (EXPERTS, rows, columns // 32, 16)).astype(np.uint8)
            scales = bits.integers(122, 126, (EXPERTS, rows, columns // 32)).astype(np.uint8)
            if mxfp4:
                tensors[full + "_blocks"] = RawTensor("U8", blocks.shape, blocks.tobytes())
                tensors[full + "_scales"] = RawTensor("U8", scales.shape, scales.tobytes())
            else:
                add(full, np.ascontiguousarray(fp4(blocks, scales).transpose(0, 2, 1)))
    quantisation = {"quantization_config": {"quant_method": "mxfp4"}} if mxfp4 else {}
    write_directory(directory, config(**quantisation), tensors)


def test_mxfp4_stands_for_its_values(tmp_path: Path) -> None:
    write(tmp_path / "float32", mxfp4=False)
    write(tmp_path / "mxfp4", mxfp4=True)
    expected, _ = run_decoder(tmp_path / "float32", PROMPT)
    found, _ = run_decoder(tmp_path / "mxfp4", PROMPT)
    assert found.tobytes() == expected.tobytes()


def test_chunks_change_no_bit(tmp_path: Path) -> None:
    write(tmp_path, mxfp4=True)
    whole, _ = run_decoder(tmp_path, PROMPT)
    for chunks in ([1] * 70, [1, 7, 3, 20, 1, 38]):
        chunked, _ = run_decoder(tmp_path, PROMPT, chunks)
        assert chunked.tobytes() == whole.tobytes()


@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_speculation_and_company_change_no_id(tmp_path: Path, batch_size: int) -> None:
    """Prompts of both sides of the window; the draft is random, so most of what it proposes is rejected."""
    target = tmp_path / "target"
    write(target, mxfp4=True)
    spec = TargetSpec(num_layers=LAYERS, hidden_size=HIDDEN, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    draft = write_draft(tmp_path / "draft", TinyCheckpoint(target, config(), {}, spec), DraftSpec(), seed=2)
    requests = [
        Request(random_prompt(3 + 9 * i, seed=i), endless(20, temperature=0.8 * (i % 2), seed=i))
        for i in range(batch_size)
    ]
    plain = make_engine(target)
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    results = serve(make_engine(target, draft.path, num_speculative_tokens=4), requests)
    assert [result.token_ids for result in results] == expected
    assert sum(result.num_draft_tokens for result in results) > 0


@pytest.mark.dev
def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    write(tmp_path, mxfp4=False)
    expected = transformers_logits(tmp_path, PROMPT)
    logits, _ = run_decoder(tmp_path, PROMPT)
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)  # a wrong graph: 1e-1
