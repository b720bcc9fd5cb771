"""Quantised matrices as published checkpoints hold them, and the float32 values that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor
from support.tensors import Array, rounded

Quantise = Callable[[str, Array], tuple[dict[str, RawTensor], Array]]  # name, values -> tensors, what they stand for


def _fp8_values() -> Array:
    """Of the 256 codes of E4M3 (bias 7, NaN where exponent and mantissa are all ones)."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    values[codes & 127 == 127] = np.nan
    return np.where(codes >= 128, -values, values).astype(np.float32)


FP8_VALUES = _fp8_values()


def _spread(scales: Array, block: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """One scale for each element."""
    return np.repeat(np.repeat(scales, block[0], axis=0), block[1], axis=1)[: shape[0], : shape[1]]


def _block_maxima(values: Array, block: tuple[int, int]) -> Array:
    rows, columns = values.shape
    padded = np.pad(np.abs(values), ((0, -rows % block[0]), (0, -columns % block[1])))
    blocks = padded.reshape(padded.shape[0] // block[0], block[0], padded.shape[1] // block[1], block[1])
    return np.asarray(blocks.max(axis=(1, 3)))


def fp8_blocks(block: tuple[int, int] = (128, 128), scale_dtype: str = "F32") -> Quantise:
    """fp8 with weight_block_size: the value is that of the code times the scale of its block."""

    def quantise(name: str, values: Array) -> tuple[dict[str, RawTensor], Array]:
        scales = (_block_maxima(values, block) / 448).astype(np.float32)
        if scale_dtype == "BF16":
            scales = rounded(scales, "bfloat16")
        spread = _spread(scales, block, values.shape)
        usable = np.flatnonzero(~np.isnan(FP8_VALUES))
        order = usable[np.argsort(FP8_VALUES[usable], kind="stable")]
        position = np.searchsorted(FP8_VALUES[order], values / spread).clip(0, len(order) - 1)
        codes = order[position].astype(np.uint8)
        stored_scales = (
            bfloat16_tensor(scales) if scale_dtype == "BF16" else RawTensor("F32", scales.shape, scales.tobytes())
        )
        tensors = {
            name: RawTensor("F8_E4M3", codes.shape, codes.tobytes()),
            f"{name}_scale_inv": stored_scales,
        }
        return tensors, FP8_VALUES[codes] * spread

    return quantise


def fp8_config(block: tuple[int, int] = (128, 128), **changes: Any) -> dict[str, Any]:
    return {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": list(block),
        **changes,
    }


def packed_int4(group_size: int = 32, shape_dtype: str = "I32") -> Quantise:
    """compressed-tensors: eight values to an int32 along K, lowest bits first, 8 added to each; a scale per group."""

    def quantise(name: str, values: Array) -> tuple[dict[str, RawTensor], Array]:
        rows, columns = values.shape
        scales = rounded(_block_maxima(values, (1, group_size)) / 7, "bfloat16")
        spread = _spread(scales, (1, group_size), values.shape)
        levels = np.clip(np.rint(values / spread), -8, 7)
        nibbles = np.pad((levels + 8).astype(np.uint32), ((0, 0), (0, -columns % 8))).reshape(rows, -1, 8)
        words = (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32).astype("<u4")
        shape = np.array([rows, columns], "<i4" if shape_dtype == "I32" else "<i8")
        tensors = {
            f"{name}_packed": RawTensor("I32", words.shape, words.tobytes()),
            f"{name}_scale": bfloat16_tensor(scales),
            f"{name}_shape": RawTensor(shape_dtype, (2,), shape.tobytes()),
        }
        return tensors, levels.astype(np.float32) * spread

    return quantise


def int4_config(group_size: int = 32, **weights: Any) -> dict[str, Any]:
    """As of Kimi K2 Thinking, K2.5 and K2.6."""
    return {
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": False,
                    "group_size": group_size,
                    "num_bits": 4,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "strategy": "group",
                    "symmetric": True,
                    "type": "int",
                    **weights,
                },
            }
        },
        "format": "pack-quantized",
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:vision_tower.*",
            "re:mm_projector.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def is_routed_expert(name: str) -> bool:
    return ".mlp.experts." in name


def is_linear(name: str) -> bool:
    """What DeepSeek quantises: every projection, but not the embedding, the head and the router."""
    return name.endswith("_proj.weight") or name.endswith("_proj_with_mqa.weight")


def quantise_weights(
    weights: Mapping[str, Array], which: Callable[[str], bool], quantise: Quantise
) -> tuple[dict[str, RawTensor], dict[str, Array]]:
    """The tensors of those that `which` names, and all weights as float32 with those replaced by what they stand for.

    An expert's or a projection's name must end in ".weight".
    """
    tensors: dict[str, RawTensor] = {}
    twin = dict(weights)
    for name, values in weights.items():
        if which(name):
            stored_as, twin[name] = quantise(name, values)
            tensors |= stored_as
    return tensors, twin
