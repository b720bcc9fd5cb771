"""What head a target and the user's choices ask for."""

from __future__ import annotations

from eagle31rt.errors import InvalidArgumentError
from eagle31rt.training.attention import GroupedSizes
from eagle31rt.training.head import HeadSizes
from eagle31rt.training.latent_attention import LatentSizes
from eagle31rt.training.rope import Rope
from eagle31rt.training.settings import HeadSettings
from eagle31rt.training.target import TargetSizes


def head_sizes(settings: HeadSettings, target: TargetSizes) -> HeadSizes:
    """Raises InvalidArgumentError for capture layers that cannot be."""
    layers = settings.capture_layers or target.default_capture_layers()
    ascending = list(layers) == sorted(set(layers)) and layers[0] >= 0 and layers[-1] <= target.num_layers
    if not ascending:
        raise InvalidArgumentError(f"--capture-layers must ascend within 0 to {target.num_layers}, got {list(layers)}")
    default = target.num_layers >= 6 and layers == target.default_capture_layers()
    if not default and layers[-1] != target.num_layers:
        raise InvalidArgumentError(
            f"--capture-layers {list(layers)} could be read in two ways by engines (k or k - 1): "
            f"take the default, or let the last one be {target.num_layers}"
        )
    attention, rope = _attention(settings, target)
    updated = settings.variant == "eagle3.1"
    return HeadSizes(
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        num_heads=target.num_heads,
        attention=attention,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(settings.draft_vocab_size, target.vocab_size),
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope=rope,
        capture_layers=tuple(layers),
        fc_norm=updated,
        norm_output=updated,
    )


def _attention(settings: HeadSettings, target: TargetSizes) -> tuple[GroupedSizes | LatentSizes, Rope]:
    """A latent attention has the target's sizes and YaRN, if that has one, too. Every other rotary embedding is
    unscaled: a head sees distances of --max-tokens in training, whatever the target's context is."""
    latent = target.latent is not None if settings.attention == "auto" else settings.attention == "mla"
    if not latent:
        return GroupedSizes(target.num_kv_heads, target.head_dim), Rope(target.rope_theta)
    sizes = target.latent or LatentSizes.like(target.head_dim, target.hidden_size)
    return sizes, Rope(target.rope_theta, interleaved=True, yarn=target.yarn)
