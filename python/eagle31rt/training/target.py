"""What training needs of a target besides the states that the engine captures: sizes, embedding, head, last norm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from eagle31rt.errors import CheckpointError, InvalidArgumentError
from eagle31rt.training.latent_attention import LatentSizes
from eagle31rt.training.rope import Yarn

_EMBEDDING, _HEAD, _NORM = "embed_tokens.weight", "lm_head.weight", "norm.weight"
_TEXT_PREFIX = "language_model."  # of the text part's tensors in a multimodal model


@dataclass(frozen=True)
class TargetSizes:
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of a latent attention: v_head_dim
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    dtype: str  # bfloat16 | float16 | float32
    special_ids: dict[str, int]  # bos_token_id and the like, where they are single ids
    latent: LatentSizes | None = None  # of a target with latent attention
    yarn: Yarn | None = None  # of its rotary embedding

    @staticmethod
    def read(directory: Path) -> TargetSizes:
        """From config.json; the engine, which loads the same directory, judges whether the family is supported."""
        path = directory / "config.json"
        try:
            config = _text_part(json.loads(path.read_text(encoding="utf-8")))
            rope = config.get("rope_parameters") or {}
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            latent = LatentSizes.read(config) if config.get("kv_lora_rank") else None
            own_head_dim = config.get("head_dim") if latent is None else latent.v_head_dim
            return TargetSizes(
                num_layers=int(config["num_hidden_layers"]),
                hidden_size=hidden,
                intermediate_size=int(config["intermediate_size"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(own_head_dim or hidden // heads),
                vocab_size=int(config["vocab_size"]),
                max_position_embeddings=int(config["max_position_embeddings"]),
                rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
                special_ids={k: v for k, v in config.items() if k.endswith("_token_id") and isinstance(v, int)},
                latent=latent,
                yarn=Yarn.read(config) if latent else None,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not the config of a target: {error!r}") from error

    def default_capture_layers(self) -> tuple[int, ...]:
        if self.num_layers < 6:
            raise InvalidArgumentError(
                f"a target of {self.num_layers} layers has no default capture layers: give --capture-layers"
            )
        return (2, self.num_layers // 2, self.num_layers - 3)


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Of a multimodal model, with what only the whole says of it; another config as it is."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    whole = {k: v for k, v in config.items() if k.endswith("_token_id") or k in ("dtype", "torch_dtype")}
    return {**whole, **text}


@dataclass(frozen=True)
class TargetTensors:
    """float32 copies of the stored values."""

    embedding: torch.Tensor  # [vocab_size, hidden_size]
    head: torch.Tensor  # [vocab_size, hidden_size]
    norm: torch.Tensor  # [hidden_size]

    @staticmethod
    def read(directory: Path) -> TargetTensors:
        found: dict[str, torch.Tensor] = {}
        for path in sorted(directory.glob("*.safetensors")):
            try:
                with safe_open(str(path), framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 (not a dict)
                        own = name.removeprefix(_TEXT_PREFIX).removeprefix("model.")
                        if own in (_EMBEDDING, _HEAD, _NORM):
                            found[own] = file.get_tensor(name).float()
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        missing = {_EMBEDDING, _NORM} - found.keys()
        if missing:
            raise CheckpointError(f"{directory} has no tensor {sorted(missing)[0]} in its safetensors files")
        return TargetTensors(found[_EMBEDDING], found.get(_HEAD, found[_EMBEDDING]), found[_NORM])

    def folded_head(self, kept: torch.Tensor) -> torch.Tensor:
        """Head rows of the kept ids with the last norm's weight folded in: logits = rows @ unit-RMS state."""
        return self.head[kept] * self.norm
