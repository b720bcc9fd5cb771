"""Checkpoints with the exact names and shapes of published ones, as sparse files: every value is 0 and takes no disk.

Sources: DeepSeek-V3's modeling code and the config.json of moonshotai/Kimi-K2-Instruct, Kimi-K2-Thinking (packed int4)
and Kimi-K2.5 (the wrapper; K2.6 has the same shapes); openai/gpt-oss-120b; TorchSpec's kimi_k25_eagle3_mla draft config
with the two switches of lightseekorg/kimi-k2.6-eagle3.1-mla; NVIDIA ModelOpt's head for gpt-oss-120b.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.quantised import int4_config

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # name -> dtype as the file spells it, shape

_BYTES = {"BF16": 2, "F32": 4, "I32": 4, "U8": 1}
_YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_MLA = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

KIMI_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    **_MLA,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": _YARN,
    "max_position_embeddings": 262144,
    "vocab_size": 163840,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "quantization_config": int4_config(32),
}

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "attention_bias": True,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "hidden_act": "silu",
    "swiglu_limit": 7.0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "max_position_embeddings": 131072,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 200002,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}


def _linear(rows: int, columns: int) -> tuple[str, tuple[int, ...]]:
    return "BF16", (rows, columns)


def _latent_attention(hidden: int, width: int, heads: int) -> Shapes:
    return {
        "self_attn.q_a_proj.weight": _linear(1536, width),
        "self_attn.q_a_layernorm.weight": ("BF16", (1536,)),
        "self_attn.q_b_proj.weight": _linear(heads * 192, 1536),
        "self_attn.kv_a_proj_with_mqa.weight": _linear(576, width),
        "self_attn.kv_a_layernorm.weight": ("BF16", (512,)),
        "self_attn.kv_b_proj.weight": _linear(heads * 256, 512),
        "self_attn.o_proj.weight": _linear(hidden, heads * 128),
    }


def _mlp(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": _linear(width, hidden),
        f"{prefix}up_proj.weight": _linear(width, hidden),
        f"{prefix}down_proj.weight": _linear(hidden, width),
    }


def _packed(shapes: Shapes) -> Shapes:
    result: Shapes = {}
    for name, (_, (rows, columns)) in shapes.items():
        result[f"{name}_packed"] = ("I32", (rows, columns // 8))
        result[f"{name}_scale"] = ("BF16", (rows, columns // 32))
        result[f"{name}_shape"] = ("I32", (2,))
    return result


def _norms(hidden: int, *names: str) -> Shapes:
    return {f"{name}.weight": ("BF16", (hidden,)) for name in names}


def kimi_k26() -> Shapes:
    hidden, width = 7168, 2048
    layer = {
        **_latent_attention(hidden, hidden, 64),
        **_norms(hidden, "input_layernorm", "post_attention_layernorm"),
    }
    experts: Shapes = {"mlp.gate.weight": _linear(384, hidden), "mlp.gate.e_score_correction_bias": ("F32", (384,))}
    experts |= _mlp("mlp.shared_experts.", hidden, width)
    for expert in range(384):
        experts |= _packed(_mlp(f"mlp.experts.{expert}.", hidden, width))
    shapes: Shapes = {"lm_head.weight": _linear(163840, hidden), "model.embed_tokens.weight": _linear(163840, hidden)}
    shapes |= _norms(hidden, "model.norm")
    for index in range(61):
        for name, shape in {**layer, **(_mlp("mlp.", hidden, 18432) if index == 0 else experts)}.items():
            shapes[f"model.layers.{index}.{name}"] = shape
    shapes = {f"language_model.{name}": shape for name, shape in shapes.items()}
    return {**shapes, "vision_tower.patch_embed.proj.weight": ("BF16", (1152, 3, 14, 14))}


def kimi_draft() -> Shapes:
    """The MLA draft of EAGLE-3.1, with an embedding and a head of its own."""
    hidden = 7168
    layer = {
        **_latent_attention(hidden, 2 * hidden, 64),
        **_mlp("mlp.", hidden, 18432),
        **_norms(hidden, "input_layernorm", "hidden_norm", "post_attention_layernorm"),
    }
    return {
        "fc.weight": _linear(hidden, 3 * hidden),
        **_norms(hidden, "fc_norm.0", "fc_norm.1", "fc_norm.2", "norm"),
        **{f"layers.0.{name}": shape for name, shape in layer.items()},
        "embed_tokens.weight": _linear(163840, hidden),
        "lm_head.weight": _linear(163840, hidden),
    }


KIMI_DRAFT: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    **_MLA,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": _YARN,
    "max_position_embeddings": 262144,
    "vocab_size": 163840,
    "draft_vocab_size": 163840,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "fc_norm": True,
    "norm_output": True,
    "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
}


def gpt_oss_120b() -> Shapes:
    hidden, heads, kv = 2880, 64 * 64, 8 * 64
    layer: Shapes = {
        **{
            f"self_attn.{name}_proj.weight": _linear(rows, hidden)
            for name, rows in (("q", heads), ("k", kv), ("v", kv))
        },
        **{f"self_attn.{name}_proj.bias": ("BF16", (rows,)) for name, rows in (("q", heads), ("k", kv), ("v", kv))},
        "self_attn.o_proj.weight": _linear(hidden, heads),
        "self_attn.o_proj.bias": ("BF16", (hidden,)),
        "self_attn.sinks": ("BF16", (64,)),
        "mlp.router.weight": _linear(128, hidden),
        "mlp.router.bias": ("BF16", (128,)),
        "mlp.experts.gate_up_proj_blocks": ("U8", (128, 5760, 90, 16)),
        "mlp.experts.gate_up_proj_scales": ("U8", (128, 5760, 90)),
        "mlp.experts.gate_up_proj_bias": ("BF16", (128, 5760)),
        "mlp.experts.down_proj_blocks": ("U8", (128, 2880, 90, 16)),
        "mlp.experts.down_proj_scales": ("U8", (128, 2880, 90)),
        "mlp.experts.down_proj_bias": ("BF16", (128, 2880)),
        **_norms(hidden, "input_layernorm", "post_attention_layernorm"),
    }
    return {
        "model.embed_tokens.weight": _linear(201088, hidden),
        "lm_head.weight": _linear(201088, hidden),
        **_norms(hidden, "model.norm"),
        **{f"model.layers.{index}.{name}": shape for index in range(36) for name, shape in layer.items()},
    }


def nvidia_draft() -> Shapes:
    hidden, heads, kv = 2880, 64 * 64, 8 * 64
    layer: Shapes = {
        **{f"self_attn.{x}_proj.weight": _linear(rows, 2 * hidden) for x, rows in (("q", heads), ("k", kv), ("v", kv))},
        "self_attn.o_proj.weight": _linear(hidden, heads),
        **_mlp("mlp.", hidden, 17280),
        **_norms(hidden, "input_layernorm", "hidden_norm", "post_attention_layernorm"),
    }
    return {
        "fc.weight": _linear(hidden, 3 * hidden),
        **_norms(hidden, "norm"),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
        "lm_head.weight": _linear(201088, hidden),
    }


NVIDIA_DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 2880,
    "intermediate_size": 17280,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 65536,
    "vocab_size": 201088,
    "draft_vocab_size": 201088,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]},
}


def write_sparse(directory: Path, config: Mapping[str, Any], shapes: Shapes, shards: int = 1) -> int:
    """config.json and safetensors files with these tensors. Returns the bytes that the tensors would take."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = list(shapes)
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file_name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, Any] = {}
        end = 0
        for name in part:
            dtype, shape = shapes[name]
            num_bytes = _BYTES[dtype]
            for size in shape:
                num_bytes *= size
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + num_bytes)}
            end += num_bytes
        text = json.dumps(header).encode()
        with open(directory / file_name, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        weight_map.update(dict.fromkeys(part, file_name))
        total += end
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total
