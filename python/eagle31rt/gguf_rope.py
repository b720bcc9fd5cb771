"""Rope of a GGUF file as a Hugging Face config spells it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle31rt.errors import CheckpointError, UnsupportedError

ROPE_FREQUENCIES = "rope_freqs.weight"
# Key of llama.cpp below "rope.scaling." -> of the config.
_SCALING = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_LOW, _HIGH = 1.0, 4.0  # of every published llama3 rope
_ORIGINAL_LENGTHS = tuple(1 << bits for bits in range(10, 21))


def rope_config(
    source: str | Path, metadata: dict[str, Any], head_dim: int, frequencies: npt.NDArray[np.float32] | None
) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` of the file's architecture.

    frequencies: the tensor rope_freqs [head_dim / 2], by which llama.cpp divides the frequencies, or None. Raises
    UnsupportedError for a scaling that no config can say, naming the key.
    """
    prefix = f"{metadata['general.architecture']}.rope."
    keys = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    theta = float(keys.pop("freq_base", 10000.0))
    if int(keys.pop("dimension_count", head_dim)) != head_dim:
        raise UnsupportedError(f"{source}: {prefix}dimension_count differs from the head size {head_dim}")
    kind = str(keys.pop("scaling.type", "none"))
    scaling: dict[str, Any] | None = None
    if kind in ("linear", "yarn"):
        scaling = {"rope_type": kind}
        for key, name in _SCALING.items():
            if f"scaling.{key}" in keys:
                scaling[name] = keys.pop(f"scaling.{key}")
    elif kind != "none":
        raise UnsupportedError(f"{source}: {prefix}scaling.type is {kind!r}; none, linear and yarn are supported")
    if keys:
        raise UnsupportedError(f"{source}: key {prefix}{min(keys)} is not supported with scaling type {kind!r}")
    if frequencies is not None:
        if scaling is not None:
            raise UnsupportedError(f"{source} has both {prefix}scaling.type {kind!r} and tensor 'rope_freqs.weight'")
        scaling = _llama3_scaling(source, frequencies, theta, head_dim)
    return {"rope_theta": theta, "rope_scaling": scaling}


def llama3_factors(
    theta: float, head_dim: int, factor: float, original: float, low: float = _LOW, high: float = _HIGH
) -> npt.NDArray[np.float64]:
    """What llama3 rope divides each of the head_dim / 2 frequencies by."""
    wave_length = 2.0 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wave_length - low) / (high - low), 0.0, 1.0)
    result: npt.NDArray[np.float64] = 1.0 / ((1.0 - smooth) / factor + smooth)
    return result


def _llama3_scaling(
    source: str | Path, frequencies: npt.NDArray[np.float32], theta: float, head_dim: int
) -> dict[str, Any] | None:
    """The llama3 scaling that gives exactly these factors; the file has the factors only."""
    if frequencies.shape != (head_dim // 2,) or not np.all(np.isfinite(frequencies)):
        raise CheckpointError(f"{source}: tensor 'rope_freqs.weight' must hold {head_dim // 2} finite numbers")
    if np.all(frequencies == 1.0):
        return None
    factor = float(frequencies.max())
    for original in _ORIGINAL_LENGTHS:
        if np.allclose(llama3_factors(theta, head_dim, factor, original), frequencies, rtol=1e-5, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedError(f"{source}: tensor 'rope_freqs.weight' is no llama3 rope with factors {_LOW} and {_HIGH}")
