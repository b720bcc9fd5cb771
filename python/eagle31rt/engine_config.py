"""Arguments of LLM, checked and turned into the core's EngineConfig."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle31rt.config import SpeculativeConfig
from eagle31rt.cuda_runtime import load_cuda_runtime
from eagle31rt.draft_source import draft_directory
from eagle31rt.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from eagle31rt._core import EngineConfig

logger = logging.getLogger("eagle31rt.engine_config")

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_QUANTISED_KV = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4", "int8")  # vLLM's
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def make_engine_config(
    model: Path,
    speculative_config: Mapping[str, Any] | None,
    *,
    dtype: str,
    kv_cache_dtype: str,
    integers: Mapping[str, int | None],
) -> EngineConfig:
    """`integers` holds the numeric arguments by vLLM's name; None is the core's default.

    Raises InvalidArgumentError, UnsupportedError or CheckpointError naming the argument.
    """
    from eagle31rt._core import EngineConfig

    config = EngineConfig()
    config.model = str(model)
    config.dtype = _dtype("dtype", dtype)
    config.kv_cache_dtype = _dtype("kv_cache_dtype", kv_cache_dtype)
    for name, value in integers.items():
        if value is not None:
            limit = _INT64_MAX if name == "kv_cache_memory_bytes" else _INT32_MAX
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
                raise InvalidArgumentError(f"{name} must be a positive integer, got {value!r}")
            setattr(config, "page_size" if name == "block_size" else name, value)
    if speculative_config is not None:
        _apply_speculation(config, SpeculativeConfig.parse(speculative_config))
    return config


def apply_device(config: EngineConfig, device: str, gpu_memory_utilization: float | None, enforce_eager: bool) -> None:
    """Sets where the engine runs; for a GPU also brings the CUDA runtime into the process."""
    if not isinstance(device, str):
        raise InvalidArgumentError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if not isinstance(enforce_eager, bool):
        raise InvalidArgumentError(f"enforce_eager must be True or False, got {enforce_eager!r}")
    config.device = device
    config.enforce_eager = enforce_eager
    if gpu_memory_utilization is not None:
        if not isinstance(gpu_memory_utilization, (int, float)) or isinstance(gpu_memory_utilization, bool):
            raise InvalidArgumentError(f"gpu_memory_utilization must be a number, got {gpu_memory_utilization!r}")
        config.gpu_memory_utilization = float(gpu_memory_utilization)
    if device.startswith("cuda"):
        load_cuda_runtime()


def _apply_speculation(config: EngineConfig, speculation: SpeculativeConfig) -> None:
    config.draft = str(draft_directory(speculation.model, "speculative_config['model']", speculation.revision))
    config.num_speculative_tokens = speculation.num_speculative_tokens
    config.tree_top_k = speculation.tree_top_k
    config.tree_depth = speculation.tree_depth
    config.speculative_token_tree = speculation.speculative_token_tree
    config.speculation_policy = speculation.policy
    if speculation.policy == "auto" and speculation.rejection_sample_method != "equality":
        logger.warning(
            "speculative_config['policy'] = 'auto' with rejection_sample_method %r is exact in distribution only: "
            "numbers of drafts follow measured times, so ids do not repeat; for that use 'fixed' or 'equality'",
            speculation.rejection_sample_method,
        )
    config.rejection_sample_method = speculation.rejection_sample_method
    config.draft_sample_method = speculation.draft_sample_method
    config.synthetic_acceptance_rates = speculation.synthetic_acceptance_rates
    config.capture_layers = speculation.capture_layers
    config.layer_id_convention = speculation.layer_id_convention
    config.feedback = speculation.feedback


def _dtype(name: str, value: str) -> str:
    if name == "kv_cache_dtype" and isinstance(value, str) and value in _QUANTISED_KV:
        raise UnsupportedError(
            f"kv_cache_dtype={value!r} is not supported by this version; use one of {', '.join(_DTYPES)}"
        )
    known = _DTYPE_ALIASES.get(value, value) if isinstance(value, str) else None
    if known not in _DTYPES:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(_DTYPES)}, got {value!r}")
    return known
