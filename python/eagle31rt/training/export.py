"""Writes a head as a draft directory that this engine, vLLM and others load: of the llama or the deepseek graph."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor, save_safetensors
from eagle31rt.training.files import write_text, writing
from eagle31rt.training.head import DraftHead, HeadSizes
from eagle31rt.training.latent_attention import LatentSizes
from eagle31rt.training.target import TargetSizes


def draft_config(sizes: HeadSizes, target: TargetSizes) -> dict[str, Any]:
    """config.json. Layer ids stand in both places where vLLM's runners look, counted as k."""
    layers = list(sizes.capture_layers)
    latent = isinstance(sizes.attention, LatentSizes)
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM" if latent else "LlamaForCausalLMEagle3"],
        # Not deepseek_v3, which vLLM takes for the target's own layers of multi-token prediction.
        "model_type": "kimi_k2" if latent else "llama",
        "hidden_size": sizes.hidden_size,
        "target_hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": sizes.num_heads,
        **_attention_config(sizes),
        "hidden_act": "silu",
        "vocab_size": sizes.vocab_size,
        "draft_vocab_size": sizes.draft_vocab_size,
        "num_aux_hidden_states": len(layers),
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope.theta,
        **({"rope_scaling": sizes.rope.yarn and sizes.rope.yarn.config()} if latent else {}),
        "max_position_embeddings": sizes.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **target.special_ids,
        "fc_norm": sizes.fc_norm,
        "norm_output": sizes.norm_output,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers},
    }


def _attention_config(sizes: HeadSizes) -> dict[str, Any]:
    if isinstance(sizes.attention, LatentSizes):
        return {"num_key_value_heads": sizes.num_heads, **asdict(sizes.attention)}
    return {"num_key_value_heads": sizes.attention.num_kv_heads, "head_dim": sizes.attention.head_dim}


def export_head(directory: Path, head: DraftHead, kept: torch.Tensor, target: TargetSizes) -> None:
    """kept [draft_vocab_size]: ascending target ids. A directory with config.json is complete, also after a kill: an
    earlier head's goes first, the new one comes last.

    Raises ResourceError naming what cannot be written.
    """
    tensors = {name: bfloat16_tensor(values.numpy()) for name, values in head.exported().items()}
    if head.sizes.draft_vocab_size != head.sizes.vocab_size:
        ids = kept.cpu().numpy().astype(np.int64)
        mask = np.zeros(head.sizes.vocab_size, np.bool_)
        mask[ids] = True
        offsets = ids - np.arange(len(ids))
        tensors["d2t"] = RawTensor("I64", offsets.shape, offsets.tobytes())
        tensors["t2d"] = RawTensor("BOOL", mask.shape, mask.tobytes())
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").unlink(missing_ok=True)
        save_safetensors(directory / "model.safetensors", tensors)
    write_text(directory / "config.json", json.dumps(draft_config(head.sizes, target), indent=2) + "\n")
