"""Parses `speculative_config` (vLLM's spelling) into what the engine takes. A key is honoured or refused by name."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.sampling_params import MAX_CHAIN_TOKENS, MAX_SPECULATIVE_TOKENS

# Keys of vLLM's speculative_config that this version does not have.
# fmt: off
UNSUPPORTED_KEYS = frozenset((
    "num_speculative_tokens_per_batch_size", "draft_tensor_parallel_size", "tensor_parallel_size", "quantization",
    "moe_backend", "attention_backend", "kv_cache_dtype", "max_model_len", "code_revision",
    "draft_load_config", "enforce_eager", "disable_padded_drafter_batch", "disable_eagle_block_drop",
    "use_local_argmax_reduction", "parallel_drafting", "use_heterogeneous_vocab", "prompt_lookup_max",
    "prompt_lookup_min", "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "index_share_for_mtp_iteration",
    "enable_adaptive_verification", "dspark_draft_topk", "target_model_config", "target_parallel_config",
    "draft_model_config", "draft_parallel_config", "disable_by_batch_size",
))
# fmt: on
CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # key: (supported, known but not yet)
    "method": (
        ("eagle3",),
        ("eagle", "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "mtp", "dflash", "dspark"),
    ),
    "policy": (("fixed", "auto"), ()),
    "rejection_sample_method": (("equality", "standard", "block", "synthetic"), ("traversal",)),
    "draft_sample_method": (("greedy", "probabilistic"), ()),
    "layer_id_convention": (("", "residual_index", "layer_output"), ()),
    "feedback": (("auto", "pre", "post"), ()),
}
_MAX_CAPTURED_LAYERS = 8


@dataclass
class SpeculativeConfig:
    """Checked settings of speculation. `synthetic_acceptance_rates`: an unconditional rate per position, or empty.

    `tree_top_k`: children of a node of a dynamic draft tree; 0 or 1: chains. `tree_depth`: its levels; 0: up to 8.
    `speculative_token_tree`: the paths of a static tree, or empty.
    """

    model: str
    num_speculative_tokens: int
    method: str = "eagle3"
    policy: str = "fixed"
    tree_top_k: int = 0
    tree_depth: int = 0
    speculative_token_tree: list[list[int]] = field(default_factory=list)
    rejection_sample_method: str = "equality"
    draft_sample_method: str = "greedy"
    synthetic_acceptance_rates: list[float] = field(default_factory=list)
    capture_layers: list[int] = field(default_factory=list)
    layer_id_convention: str = ""
    feedback: str = "auto"
    revision: str | None = None  # of a hub id

    @staticmethod
    def parse(values: Mapping[str, Any]) -> SpeculativeConfig:
        """Raises InvalidArgumentError (bad value, unknown key) or UnsupportedError (known to vLLM, not here yet)."""
        if not isinstance(values, Mapping):
            raise InvalidArgumentError(f"speculative_config must be a dict, got {type(values).__name__}")
        _refuse_other_keys(values)
        for key in ("model", "num_speculative_tokens"):
            if values.get(key) is None:
                example = '{"method": "eagle3", "model": "DIR", "num_speculative_tokens": 3}'
                raise InvalidArgumentError(f"speculative_config lacks {key!r}; for example {example}")
        count = values["num_speculative_tokens"]
        if not _is_integer(count) or not 0 <= count <= MAX_SPECULATIVE_TOKENS:
            raise InvalidArgumentError(_message("num_speculative_tokens", f"0 to {MAX_SPECULATIVE_TOKENS}", count))
        config = SpeculativeConfig(model=str(values["model"]), num_speculative_tokens=count)
        _set_trees(config, values)
        for key in CHOICES:
            if values.get(key) is not None:
                setattr(config, key, _choice(key, values[key]))
        config.revision = _revision(values.get("revision"))
        if values.get("capture_layers") is not None:
            config.capture_layers = _capture_layers(values["capture_layers"])
        config.synthetic_acceptance_rates = _synthetic_rates(values, config)
        if config.draft_sample_method == "probabilistic" and config.rejection_sample_method == "equality":
            raise InvalidArgumentError(
                "speculative_config: draft_sample_method 'probabilistic' needs rejection_sample_method 'standard' or "
                "'block'; 'equality' is for drafts that are not sampled"
            )
        return config


def _set_trees(config: SpeculativeConfig, values: Mapping[str, Any]) -> None:
    """What the core cannot say of itself: types, and how many drafts a chain may have."""
    for key, most in (("tree_top_k", 64), ("tree_depth", MAX_SPECULATIVE_TOKENS)):
        value = values.get(key)
        if value is None:
            continue
        if not _is_integer(value) or not 1 <= value <= most:
            raise InvalidArgumentError(_message(key, f"1 to {most}", value))
        setattr(config, key, value)
    if values.get("speculative_token_tree") is not None:
        config.speculative_token_tree = _token_tree(values["speculative_token_tree"])
    count, is_chain = config.num_speculative_tokens, config.tree_top_k <= 1 and not config.speculative_token_tree
    if is_chain and count > MAX_CHAIN_TOKENS:
        wanted = f"0 to {MAX_CHAIN_TOKENS} (with draft trees, tree_top_k of 2 or more, up to {MAX_SPECULATIVE_TOKENS})"
        raise InvalidArgumentError(_message("num_speculative_tokens", wanted, count))


def _token_tree(value: Any) -> list[list[int]]:
    """vLLM's spelling, a string like "[(0,), (0, 0), (1,)]", or the list that it stands for."""
    wanted = 'a list of paths such as "[(0,), (0, 0), (1,)]", each of 1 to 64 ranks from 0 to 63'
    try:
        paths = ast.literal_eval(value) if isinstance(value, str) else value
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise InvalidArgumentError(_message("speculative_token_tree", wanted, value)) from error
    valid = isinstance(paths, (list, tuple)) and 1 <= len(paths) <= 1024
    if not valid or not all(_is_path(path) for path in paths):
        raise InvalidArgumentError(_message("speculative_token_tree", wanted, value))
    return [list(path) for path in paths]


def _is_path(path: object) -> bool:
    if not isinstance(path, (list, tuple)) or not 1 <= len(path) <= MAX_SPECULATIVE_TOKENS:
        return False
    return all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 64 for rank in path)


def _refuse_other_keys(values: Mapping[str, Any]) -> None:
    own = {"model", "revision", "num_speculative_tokens", "capture_layers", *CHOICES}
    own |= {"synthetic_acceptance_rates", "synthetic_acceptance_length"}
    own |= {"tree_top_k", "tree_depth", "speculative_token_tree"}
    for key in values:
        if key in UNSUPPORTED_KEYS:
            raise UnsupportedError(f"speculative_config key {key!r} is not supported by this version; leave it out")
        if key not in own:
            raise InvalidArgumentError(f"speculative_config has no key {key!r}; known: {', '.join(sorted(own))}")


def _choice(key: str, value: Any) -> str:
    supported, later = CHOICES[key]
    wanted = " or ".join(map(repr, supported))
    if value in later:
        raise UnsupportedError(
            f"speculative_config[{key!r}] = {value!r} is not supported by this version; use {wanted}"
        )
    if not isinstance(value, str) or value not in supported:
        raise InvalidArgumentError(_message(key, wanted, value))
    return value


def _revision(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise InvalidArgumentError(_message("revision", "a branch, a tag or a commit of the hub", value))
    return value


def _capture_layers(value: Any) -> list[int]:
    valid = isinstance(value, (list, tuple)) and 1 <= len(value) <= _MAX_CAPTURED_LAYERS
    if not valid or not all(_is_integer(layer) and 0 <= layer < 2**31 for layer in value):
        raise InvalidArgumentError(
            _message("capture_layers", f"a list of 1 to {_MAX_CAPTURED_LAYERS} layer ids", value)
        )
    return list(value)


def _synthetic_rates(values: Mapping[str, Any], config: SpeculativeConfig) -> list[float]:
    rates, length = values.get("synthetic_acceptance_rates"), values.get("synthetic_acceptance_length")
    if config.rejection_sample_method != "synthetic":
        if rates is not None or length is not None:
            raise InvalidArgumentError(
                "synthetic_acceptance_* needs rejection_sample_method 'synthetic' in speculative_config"
            )
        return []
    if (rates is None) == (length is None):
        raise InvalidArgumentError(
            "rejection_sample_method 'synthetic' needs one of synthetic_acceptance_rates, synthetic_acceptance_length"
        )
    count = config.num_speculative_tokens
    return _rates_from_length(length, count) if rates is None else _checked_rates(rates, count)


def _rates_from_length(length: Any, count: int) -> list[float]:
    if not _is_number(length) or not 1.0 <= length <= count + 1:
        raise InvalidArgumentError(_message("synthetic_acceptance_length", f"a number from 1 to {count + 1}", length))
    accepted = float(length) - 1.0
    return [min(1.0, max(0.0, accepted - position)) for position in range(count)]


def _checked_rates(rates: Any, count: int) -> list[float]:
    valid = isinstance(rates, (list, tuple)) and len(rates) == count
    if not valid or not all(_is_number(rate) and 0.0 <= rate <= 1.0 for rate in rates):
        raise InvalidArgumentError(_message("synthetic_acceptance_rates", f"{count} numbers from 0 to 1", rates))
    result = [float(rate) for rate in rates]
    if any(later > earlier for earlier, later in pairwise(result)):
        raise InvalidArgumentError(
            _message("synthetic_acceptance_rates", "unconditional rates that do not increase", rates)
        )
    return result


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _message(key: str, wanted: str, value: object) -> str:
    return f"speculative_config[{key!r}] must be {wanted}, got {value!r}"
