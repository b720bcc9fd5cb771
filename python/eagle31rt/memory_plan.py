"""`eagle31rt plan`: what a target and its draft take on each of 1, 2, 4 or 8 devices, told by configs and headers.

The shares are those of csrc/model/memory_plan.h. This version itself runs on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError
from eagle31rt.sampling_params import MAX_SPECULATIVE_TOKENS

SIZES = (1, 2, 4, 8)
_FLOAT_BYTES = 4
_MAX_SETTING = 2**31 - 1  # an int32 of the core


@dataclass(frozen=True)
class PlanSettings:
    """Meanings and names of the engine's; max_model_len None: the model's."""

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    num_speculative_tokens: int = 3
    block_size: int = 16
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"


def plan_memory(
    target: Path, draft: Path | None, settings: PlanSettings, sizes: Sequence[int] | None = None
) -> dict[str, Any]:
    """Bytes by kind for each size of tensor parallelism, as `eagle31rt plan --json` prints them.

    sizes: None for those of SIZES that divide target and draft; `left_out` names the others and why.

    Raises what loading says of configs and headers, and InvalidArgumentError for a size that does not divide the model.
    """
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"):
        value = getattr(settings, name)
        if not (1 <= value <= _MAX_SETTING if value is not None else name == "max_model_len"):
            raise InvalidArgumentError(f"{name} is {value}; give 1 to {_MAX_SETTING}")
    if not 0 <= settings.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
        raise InvalidArgumentError(
            f"num_speculative_tokens is {settings.num_speculative_tokens}; give 0 to {MAX_SPECULATIVE_TOKENS}"
        )
    rows_per_sequence = 1 + (settings.num_speculative_tokens if draft is not None else 0)
    logit_rows = settings.max_num_seqs * rows_per_sequence
    core = _core.plan_memory(
        str(target),
        str(draft or ""),
        list(SIZES if sizes is None else sizes),
        sizes is None,
        settings.max_model_len or 0,
        settings.max_num_batched_tokens + logit_rows,
        settings.dtype,
        settings.kv_cache_dtype,
    )
    pages = -(-core["max_model_len"] // settings.block_size)
    tokens = settings.max_num_seqs * pages * settings.block_size
    planned = core["sizes"]
    drafts = core["draft"] or [None] * len(planned)
    logits = logit_rows * core["vocab_size"] * _FLOAT_BYTES
    return {
        "target": str(target),
        "draft": None if draft is None else str(draft),
        **asdict(settings),
        "max_model_len": core["max_model_len"],
        "dtype": core["dtype"],
        "kv_cache_dtype": core["kv_cache_dtype"],
        "kv_cache_tokens": tokens,
        "target_file_bytes": core["target_file_bytes"],
        "draft_file_bytes": core["draft_file_bytes"],
        "ranks": [
            _rank(size, model, drafted, tokens, logits)
            for size, model, drafted in zip(planned, core["target"], drafts, strict=True)
        ],
        "left_out": {str(size): reason for size, reason in core["left_out"].items()},
    }


def _rank(size: int, target: dict[str, Any], draft: dict[str, Any] | None, tokens: int, logits: int) -> dict[str, Any]:
    """Of one device."""
    draft = draft or {"weights": {}, "weight_bytes": 0, "kv_bytes_per_token": 0, "activation_bytes": 0}
    kv_per_token = target["kv_bytes_per_token"] + draft["kv_bytes_per_token"]
    result = {
        "tensor_parallel_size": size,
        "target_weights": target["weights"],
        "draft_weights": draft["weights"],
        "target_weight_bytes": target["weight_bytes"],
        "draft_weight_bytes": draft["weight_bytes"],
        "target_kv_bytes_per_token": target["kv_bytes_per_token"],
        "draft_kv_bytes_per_token": draft["kv_bytes_per_token"],
        "kv_cache_bytes": tokens * kv_per_token,
        "activation_bytes": target["activation_bytes"] + draft["activation_bytes"],
        "logits_bytes": logits,
    }
    parts = ("target_weight_bytes", "draft_weight_bytes", "kv_cache_bytes", "activation_bytes", "logits_bytes")
    result["total_bytes"] = sum(result[part] for part in parts)
    return result


def print_plan(plan: dict[str, Any], console: Console) -> None:
    """A column for each size of tensor parallelism, bytes of one device."""
    ranks = plan["ranks"]
    stored = [f"target {_size(plan['target_file_bytes'])}"]
    if plan["draft"] is not None:
        stored.append(f"draft {_size(plan['draft_file_bytes'])}")
    console.print(
        f"in files: {', '.join(stored)}; in memory: weights {plan['dtype']}, KV cache {plan['kv_cache_dtype']}; "
        f"{plan['max_num_seqs']} sequences of {plan['max_model_len']} tokens"
    )
    table = Table("of one device", *[f"TP {rank['tensor_parallel_size']}" for rank in ranks])
    for column in table.columns[1:]:
        column.justify = "right"
    for model in ("target", "draft"):
        for kind in ranks[0][f"{model}_weights"]:
            table.add_row(
                f"{model} {kind.replace('_', ' ')}", *[_size(rank[f"{model}_weights"][kind]) for rank in ranks]
            )
    for title, key in (
        ("target weights", "target_weight_bytes"),
        ("draft weights", "draft_weight_bytes"),
        ("target KV a token", "target_kv_bytes_per_token"),
        ("draft KV a token", "draft_kv_bytes_per_token"),
        ("KV cache", "kv_cache_bytes"),
        ("activations", "activation_bytes"),
        ("logits", "logits_bytes"),
        ("total", "total_bytes"),
    ):
        table.add_row(title, *[_size(rank[key]) for rank in ranks], style="bold" if key == "total_bytes" else "")
    console.print(table)
    for size, reason in plan["left_out"].items():
        console.print(f"TP {size} is left out: {reason}", markup=False)
    if any(rank["tensor_parallel_size"] > 1 for rank in ranks):
        console.print("This version runs a model on one device; TP 2 and more are plans.")


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"
