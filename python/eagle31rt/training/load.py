"""Reads a draft directory as export.py writes it into a head that torch can run: to look inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle31rt.errors import CheckpointError
from eagle31rt.training.attention import GroupedSizes
from eagle31rt.training.head import DraftHead, HeadSizes
from eagle31rt.training.latent_attention import LatentSizes
from eagle31rt.training.rope import Rope, Yarn
from eagle31rt.training.target import TargetSizes, TargetTensors


def read_sizes(config: dict[str, Any], target: TargetSizes) -> HeadSizes:
    """From a config.json as export.py writes it. KeyError for a missing key, ValueError for what a head cannot be."""
    latent = config.get("kv_lora_rank") is not None
    return HeadSizes(
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=int(config["num_attention_heads"]),
        attention=LatentSizes.read(config) if latent else GroupedSizes.read(config),
        vocab_size=int(config["vocab_size"]),
        draft_vocab_size=int(config.get("draft_vocab_size") or config["vocab_size"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope=Rope(
            theta=float(config["rope_theta"]),
            interleaved=latent and bool(config.get("rope_interleave", True)),
            yarn=Yarn.read(config),
        ),
        capture_layers=tuple(config.get("eagle_aux_hidden_state_layer_ids") or target.default_capture_layers()),
        fc_norm=bool(config.get("fc_norm")),
        norm_output=bool(config.get("norm_output")),
    )


def load_head(
    directory: Path, target: TargetSizes, tensors: TargetTensors, max_tokens: int
) -> tuple[DraftHead, torch.Tensor]:
    """The head and its draft vocabulary (ascending target ids). Raises CheckpointError for what it is not."""
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        stored = load_file(directory / "model.safetensors")
        sizes = read_sizes(config, target)
        head = DraftHead(sizes, tensors.embedding, max_tokens)
        offsets = stored.pop("d2t", torch.zeros(sizes.draft_vocab_size, dtype=torch.int64))
        stored.pop("t2d", None)
        names = {name.removeprefix("model.").replace("layers.0.", "midlayer."): name for name in stored}
        weights = {name: stored[own].float() for name, own in names.items()}
        head.load_state_dict({**weights, "fc_scale": head.fc_scale})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{directory} is not a one-layer draft for this target: {error}") from error
    return head, torch.arange(sizes.draft_vocab_size) + offsets
