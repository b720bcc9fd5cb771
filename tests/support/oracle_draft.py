"""The EAGLE-3 / EAGLE-3.1 draft in plain numpy (eagle31_spec 1 and 2), and the speculative loop around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from support.oracle import Arithmetic, KvCache, Layer, Target
from support.oracle_latent import LatentLayer
from support.oracle_tensors import read_checkpoint

_OLD_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


def canonical_name(name: str) -> str:
    name = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    for old, new in _OLD_NORMS.items():
        name = name.replace(old, new)
    return name


def resolve_capture_layers(config: dict, num_layers: int) -> list[int]:
    """Canonical k of R_k, by the rules of eagle31_spec 1.1."""
    nested = config.get("eagle_config") or {}
    ids = config.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    if not ids:
        return [2, num_layers // 2, num_layers - 3]
    if config.get("speculators_model_type") or num_layers in ids:
        return list(ids)
    if ids == [1, num_layers // 2 - 1, num_layers - 4]:
        return [i + 1 for i in ids]
    if ids == [2, num_layers // 2, num_layers - 3]:
        return list(ids)
    raise ValueError(f"layer ids {ids} are ambiguous: give capture_layers")


@dataclass(frozen=True)
class Switches:
    """What a draft does; `None` means what its config says. Tests set one wrongly to see that it shows."""

    fc_norm: bool | None = None
    norm_before_fc: bool | None = None
    norm_output: bool | None = None
    norm_before_residual: bool | None = None
    shift: int = 1  # the token of slot p is t[p + shift]


class DraftCache:
    """The caches of all layers, which grow together."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [KvCache() for _ in range(num_layers)]

    def __len__(self) -> int:
        return len(self.layers[0])

    def truncate(self, length: int) -> None:
        for layer in self.layers:
            layer.truncate(length)


class Draft:
    def __init__(
        self,
        directory: str | Path,
        target: Target,
        capture_layers: list[int] | None = None,
        switches: Switches | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        config, tensors = read_checkpoint(directory)
        self.config = {**config.pop("transformer_layer_config", {}), **config}
        self.tensors = {canonical_name(name): tensor for name, tensor in tensors.items()}
        self.arithmetic = arithmetic or target.arithmetic
        self.capture_layers = capture_layers or resolve_capture_layers(self.config, target.num_layers)
        self.switches = switches or Switches()
        kind = LatentLayer if "kv_lora_rank" in self.config else Layer
        prefixes = [f"layers.{index}." for index in range(self.config.get("num_hidden_layers", 1))]
        self.layers = [kind(self.config, self.tensors, prefix, self.arithmetic) for prefix in prefixes]
        for layer, layer_type in zip(self.layers, self.config.get("layer_types", []), strict=False):
            layer.window = self.config["sliding_window"] if layer_type == "sliding_attention" else 0
        self.epsilon = self.config["rms_norm_eps"]
        self.embedding = self.tensors.get("embed_tokens.weight", target.embedding)
        self.head = self.tensors.get("lm_head.weight", target.head)
        self.target_ids = np.arange(len(self.head)) + self.tensors.get("d2t", 0)

    def on(self, switch: str) -> bool:
        chosen = getattr(self.switches, switch)
        if chosen is not None:
            return chosen
        nested = self.config.get("eagle_config") or {}
        old = {"fc_norm": "use_aux_norm", "norm_output": "return_hidden_post_norm"}.get(switch, switch)
        return any(holder.get(key, False) for holder in (self.config, nested) for key in (switch, old))

    def captured(self, residuals: list[np.ndarray]) -> np.ndarray:
        """R_0 .. R_N -> [n, A * Ht], ascending k."""
        return np.concatenate([residuals[k] for k in self.capture_layers], axis=-1)

    def fuse(self, captured: np.ndarray) -> np.ndarray:
        """[n, A * Ht] -> feature g [n, H]."""
        arithmetic = self.arithmetic
        if self.on("fc_norm"):
            chunks = np.split(captured, len(self.capture_layers), axis=-1)
            weights = [self.tensors.get(f"fc_norm.{i}.weight", np.ones(c.shape[-1])) for i, c in enumerate(chunks)]
            normed = [arithmetic.rms_norm(c, w, self.epsilon) for c, w in zip(chunks, weights, strict=True)]
            captured = np.concatenate(normed, axis=-1)
        if self.on("norm_before_fc"):
            weight = self.tensors.get("input_norm.weight", np.ones(captured.shape[-1]))
            captured = arithmetic.rms_norm(captured, weight, self.epsilon)
        return arithmetic.linear(captured, self.tensors["fc.weight"], self.tensors.get("fc.bias"))

    def new_cache(self) -> DraftCache:
        return DraftCache(len(self.layers))

    def forward(self, hidden: np.ndarray, token_ids: list[int], cache: DraftCache) -> tuple[np.ndarray, np.ndarray]:
        """The next n slots (hidden [n, H], token [n]) -> logits [n, Vd] and the states to feed back [n, H]."""
        arithmetic, first = self.arithmetic, self.layers[0]
        positions = np.arange(len(cache), len(cache) + len(token_ids))
        embedded = arithmetic.rows(self.embedding, np.asarray(token_ids, np.int64))
        embedded = arithmetic.rms_norm(embedded, first.weight("input_layernorm"), self.epsilon)
        normed = arithmetic.rms_norm(hidden, first.weight("hidden_norm"), self.epsilon)
        x = normed if self.on("norm_before_residual") else hidden
        attention_input = np.concatenate([embedded, normed], axis=-1)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            if layer is not first:
                attention_input = arithmetic.rms_norm(x, layer.weight("input_layernorm"), self.epsilon)
            x = x + layer.attention(attention_input, positions, layer_cache)
            x = x + layer.mlp(arithmetic.rms_norm(x, layer.weight("post_attention_layernorm"), self.epsilon))
        y = arithmetic.rms_norm(x, self.tensors["norm.weight"], self.epsilon)
        return arithmetic.linear(y, self.head), (y if self.on("norm_output") else x)

    def chain(self, features: np.ndarray, token_ids: list[int], cache: DraftCache, num_steps: int) -> list[np.ndarray]:
        """Feeds the true features [m, H] with tokens t[1:] of token_ids, then drafts greedily: num_steps logits [Vd].

        Provisional entries are dropped again: the cache ends with true features only.
        """
        logits, fed_back = self.forward(features, token_ids, cache)
        true_length = len(cache)
        steps = [logits[-1]]
        while len(steps) < num_steps:
            token = int(self.target_ids[steps[-1].argmax()])
            logits, fed_back = self.forward(fed_back[-1:], [token], cache)
            steps.append(logits[-1])
        cache.truncate(true_length)
        return steps


def draft_once(target: Target, draft: Draft, token_ids: list[int], num_steps: int) -> tuple[np.ndarray, list[int]]:
    """Prefills token_ids[:-1] and drafts after token_ids[-1]: logits [num_steps, Vd] and target ids [num_steps]."""
    _, residuals = target.forward(token_ids[:-1], target.new_caches())
    shifted = token_ids[draft.switches.shift :][: len(token_ids) - 1]
    steps = draft.chain(draft.fuse(draft.captured(residuals)), shifted, draft.new_cache(), num_steps)
    return np.array(steps), [int(draft.target_ids[row.argmax()]) for row in steps]


def _margin(rows: np.ndarray) -> float:
    """Smallest gap between the best and the second best of a row: below float32 error the walk may differ."""
    top = np.sort(rows, axis=-1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).min())


@dataclass
class Trace:
    """What a greedy speculative run does, round by round."""

    token_ids: list[int] = field(default_factory=list)  # generated
    drafted: list[int] = field(default_factory=list)  # drafts of each round that has any
    accepted: list[int] = field(default_factory=list)  # of them, accepted and emitted
    refused: list[int] = field(default_factory=list)  # the draft of each round that the target refused, if any
    margin: float = np.inf


def speculate(
    target: Target, draft: Draft, prompt: list[int], max_tokens: int, num_drafts: int, stop_ids: tuple[int, ...] = ()
) -> Trace:
    """Greedy chain speculation of `num_drafts` a round, never more than could be emitted with a bonus token."""
    trace, caches, draft_cache = Trace(), target.new_caches(), draft.new_cache()
    logits, residuals = target.forward(prompt, caches)
    pending = draft.captured(residuals)  # true features that the draft has not seen
    trace.token_ids.append(int(logits[-1].argmax()))
    trace.margin = _margin(logits[-1:])
    while len(trace.token_ids) < max_tokens and trace.token_ids[-1] not in stop_ids:
        tokens = prompt + trace.token_ids
        chain_length = min(num_drafts, max_tokens - len(trace.token_ids) - 1)
        drafts: list[int] = []
        if chain_length > 0:
            features = draft.fuse(pending)
            steps = draft.chain(features, tokens[len(draft_cache) + 1 :], draft_cache, chain_length)
            drafts = [int(draft.target_ids[row.argmax()]) for row in steps]
            trace.margin = min(trace.margin, _margin(np.array(steps)))
            pending = pending[:0]
        logits, residuals = target.forward([tokens[-1], *drafts], caches)
        wanted = [int(row.argmax()) for row in logits]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == wanted[accepted]:
            accepted += 1
        trace.margin = min(trace.margin, _margin(logits[: accepted + 1]))
        for cache in caches:
            cache.truncate(len(tokens) + accepted)
        pending = np.concatenate([pending, draft.captured(residuals)[: accepted + 1]])
        run = wanted[: accepted + 1]
        stop = next((i + 1 for i, token in enumerate(run) if token in stop_ids), len(run))
        trace.token_ids += run[:stop]
        if drafts:
            trace.drafted.append(len(drafts))
            trace.accepted.append(min(accepted, stop))
            trace.refused += drafts[accepted : accepted + 1]
    return trace
