"""Faults of a draft, for every format of a Hugging Face folder: what is changed, and what the refusal must say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, Eagle31rtError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor, save_safetensors
from eagle31rt.torch_checkpoint import read_torch_checkpoint
from support.tensors import Array, stored
from support.torch_file import write_torch_file

_IDS = "eagle_aux_hidden_state_layer_ids"
_PICKLE = "pytorch_model.bin"


class DraftFiles:
    """A written draft, its tensors under canonical names, to be changed and saved."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        if (directory / _PICKLE).exists():
            self.tensors = read_torch_checkpoint(directory / _PICKLE)
        else:
            read = _testing.read_checkpoint(str(directory)).items()
            self.tensors = {name: RawTensor(dtype, shape, data) for name, (dtype, shape, data) in read}

    @property
    def layer(self) -> dict[str, Any]:
        """The object with the sizes of the layer."""
        nested: dict[str, Any] = self.config.get("transformer_layer_config", self.config)
        return nested

    def file_name(self, canonical: str) -> str:
        """As this file spells it; a new tensor is spelled as the others."""
        known = {name.removeprefix("model.").replace("midlayer.", "layers.0."): name for name in self.tensors}
        return known.get(canonical, canonical)

    def put(self, canonical: str, values: Array | None) -> None:
        """Replaces, adds or (None) removes a tensor."""
        name = self.file_name(canonical)
        if values is None:
            del self.tensors[name]
        else:
            self.tensors[name] = stored(values, "bfloat16")

    def values(self, canonical: str) -> Array:
        """Of an integer tensor."""
        return np.frombuffer(self.tensors[self.file_name(canonical)].data, dtype="<i8")

    def save(self) -> None:
        (self.directory / "config.json").write_text(json.dumps(self.config))
        if (self.directory / _PICKLE).exists():
            write_torch_file(self.directory / _PICKLE, self.tensors)
        else:
            save_safetensors(self.directory / "model.safetensors", self.tensors)


@dataclass(frozen=True)
class Fault:
    change: Callable[[DraftFiles], object]
    message: str  # regular expression
    error: type[Eagle31rtError] = CheckpointError


def _ones(*shape: int) -> Array:
    return np.ones(shape, dtype=np.float32)


def _put(name: str, values: Array | None) -> Callable[[DraftFiles], None]:
    return lambda files: files.put(name, values)


def _set(**keys: Any) -> Callable[[DraftFiles], None]:
    return lambda files: files.config.update(keys)


def _set_layer(**keys: Any) -> Callable[[DraftFiles], None]:
    return lambda files: files.layer.update(keys)


def _all(*changes: Callable[[DraftFiles], object]) -> Callable[[DraftFiles], None]:
    def change(files: DraftFiles) -> None:
        for one in changes:
            one(files)

    return change


def _ids(*ids: int) -> Callable[[DraftFiles], None]:
    def change(files: DraftFiles) -> None:
        files.config[_IDS] = list(ids)
        files.config.get("eagle_config", {}).pop(_IDS, None)

    return change


def _ids_in_two_places(files: DraftFiles) -> None:
    files.config[_IDS] = [2, 4, 5]
    files.config["eagle_config"] = {_IDS: [1, 3, 4]}


def _post_norm_twice(files: DraftFiles) -> None:
    files.config["norm_output"] = True
    files.config["eagle_config"] = {**(files.config.get("eagle_config") or {}), "return_hidden_post_norm": False}


def _absolute(files: DraftFiles) -> None:
    """What llama.cpp's newer converter writes; t2d, if there, still tells."""
    files.put("d2t", files.values("d2t") + np.arange(40))


def _no_floats(files: DraftFiles) -> None:
    bad = np.frombuffer(files.tensors[files.file_name("norm.weight")].data, dtype="<u2").copy()
    bad[3] = 0x7FC0  # NaN
    files.tensors[files.file_name("norm.weight")] = RawTensor("BF16", bad.shape, bad.tobytes())


_QUERY = "layers.0.self_attn.q_proj.weight"
_FC_NORMS = _all(*(_put(f"fc_norm.{i}.weight", _ones(32)) for i in range(3)))

# The tiny draft: hidden 32, 4 heads of 8, 2 kv heads, MLP 40, 96 tokens, 40 of them drafted, 8 layers in the target.
FAULTS: dict[str, Fault] = {
    "no fc": Fault(_put("fc.weight", None), "is not an EAGLE draft: it has no fc.weight"),
    "no hidden_norm": Fault(_put("layers.0.hidden_norm.weight", None), 'lacks .*"layers.0.hidden_norm.weight"'),
    "no final norm": Fault(_put("norm.weight", None), 'lacks .*"norm.weight"'),
    "no head": Fault(_put("lm_head.weight", None), 'lacks tensor "lm_head.weight"'),
    "no d2t": Fault(_put("d2t", None), 'lacks tensor "d2t": the draft has 40 of 96 tokens'),
    "fc of two states": Fault(_put("fc.weight", _ones(32, 64)), 'fc.weight" has 64 columns, but 3 captured'),
    "query of a plain layer": Fault(_put(_QUERY, _ones(32, 32)), r"q_proj.weight. .*\[32, 32\].*\[32, 64\]"),
    "narrow MLP": Fault(_put("layers.0.mlp.down_proj.weight", _ones(32, 39)), r"down_proj.weight. .*\[32, 39\]"),
    "short head": Fault(_put("lm_head.weight", _ones(39, 32)), r'"lm_head.weight" .*\[39, 32\].*\[40, 32\]'),
    "NaN": Fault(_no_floats, 'norm.weight" .BF16. has 1 values that are NaN'),
    "unknown tensor": Fault(_put("enorm.weight", _ones(32)), 'does not ask for: "enorm.weight"'),
    "d2t of target ids": Fault(_absolute, '"d2t".* target ids instead of offsets'),
    "d2t of floats": Fault(_put("d2t", np.zeros(40, dtype=np.float32)), '"d2t" has dtype BF16; it must be I64'),
    "d2t repeated": Fault(_put("d2t", -np.arange(40)), r'"d2t"\[1\] gives target id 0 after 0'),
    "d2t too short": Fault(_put("d2t", np.zeros(39, dtype=np.int64)), r'"d2t" has shape \[39\]'),
    "EAGLE-1 head": Fault(
        _all(_put("fc.weight", _ones(32, 64)), _put(_QUERY, _ones(32, 32))), "is an EAGLE-1 head", UnsupportedError
    ),
    "EAGLE-1 input": Fault(
        _set(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state. is false", UnsupportedError
    ),
    "EAGLE-1 architecture": Fault(
        _set(architectures=["EagleLlamaForCausalLM"]), "is an EAGLE-1 head", UnsupportedError
    ),
    "fc_norm without switch": Fault(_FC_NORMS, '"fc_norm.0.weight" is present, but fc_norm is not true'),
    "fc_norm without tensors": Fault(_set(fc_norm=True), "fc_norm is true in config.json, .* no tensor fc_norm."),
    "both norms": Fault(_set(fc_norm=True, norm_before_fc=True), "norm_before_fc and fc_norm are both true"),
    "aliases differ": Fault(_set(fc_norm=True, use_aux_norm=False), '"fc_norm" is true but "use_aux_norm" is false'),
    "post norm differs": Fault(_post_norm_twice, '"norm_output" is true but .*return_hidden_post_norm" is false'),
    "ids unsorted": Fault(_ids(4, 2, 5), rf"{_IDS} is \[4, 2, 5\]; ids must be strictly ascending"),
    "ids beyond the target": Fault(_ids(2, 4, 9), rf"{_IDS} is \[2, 4, 9\].* the target has 8"),
    "ids in two places": Fault(_ids_in_two_places, f'"{_IDS}" is .* but "eagle_config.{_IDS}" is'),
    "more states announced": Fault(
        _set(num_aux_hidden_states=4), "num_aux_hidden_states is 4, but 3|for its 4 captured"
    ),
    "another vocabulary": Fault(_set_layer(vocab_size=95), 'vocab_size" is 95, but the target has 96'),
    "another width": Fault(_set(target_hidden_size=64), '"target_hidden_size" is 64, but the target has 32'),
    "two draft vocabularies": Fault(
        _set(truncated_vocab_size=41), '"draft_vocab_size" is 40 but "truncated_vocab_size" is 41'
    ),
    "no heads": Fault(_set_layer(num_attention_heads=None), "num_attention_heads"),
    "another activation": Fault(_set_layer(hidden_act="gelu"), 'hidden_act" is "gelu"', UnsupportedError),
    "unknown rope": Fault(
    _set_layer(rope_parameters=None, rope_scaling={"rope_type": "spiral"}), "spiral", UnsupportedError
    ),
    "P-EAGLE tensor": Fault(_put("mask_hidden", _ones(1, 1, 96)), '"mask_hidden" belongs to P-EAGLE', UnsupportedError),
    "P-EAGLE switch": Fault(_set(parallel_drafting=True), '"parallel_drafting" is true', UnsupportedError),
    "quantised": Fault(_put("fc.weight_scale", _ones(1)), "quantised", UnsupportedError),
    "odd dtype": Fault(_set(dtype=None, torch_dtype="float8_e4m3fn"), "dtype .float8_e4m3fn", UnsupportedError),
}  # fmt: skip


@dataclass(frozen=True)
class GgufFault:
    """`weights` replaces tensors by canonical name (None removes), the rest are arguments of write_draft_gguf."""

    message: str
    error: type[Eagle31rtError] = CheckpointError
    weights: dict[str, Array | None] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)
    extract_layers: list[int] = field(default_factory=lambda: [2, 4, 5])
    options: dict[str, Any] = field(default_factory=dict)


_FREQUENCIES = {"rope_freqs.weight": np.array([1, 2, 3, 4], dtype=np.float32)}
GGUF_FAULTS: dict[str, GgufFault] = {
    "no fc": GgufFault("lacks tensor 'fc.weight'", weights={"fc.weight": None}),
    "no hidden_norm": GgufFault('lacks .*"layers.0.hidden_norm.weight"', weights={"layers.0.hidden_norm.weight": None}),
    "no head": GgufFault('lacks tensor "lm_head.weight"', weights={"lm_head.weight": None}),
    "no d2t": GgufFault('lacks tensor "d2t"', weights={"d2t": None}),
    "d2t of floats": GgufFault("tensor 'd2t' is F32, not I64", weights={"d2t": _ones(40)}),
    "d2t of either kind": GgufFault(r"'d2t' \(40 of 96 tokens\) can hold", weights={"d2t": np.arange(40)}),
    "d2t beyond the vocabulary": GgufFault('"d2t".*leaves the vocabulary', weights={"d2t": np.arange(40) + 60}),
    "heads": GgufFault(
        r"'blk.0.attn_q.weight' has shape \[32, 64\], and .* is 3", options={"keys": {"attention.head_count": 3}}
    ),
    "width": GgufFault('"target_hidden_size" is 64, but the target has 32', layer={"target_hidden_size": 64}),
    "vocabulary": GgufFault('"vocab_size" is 95, but the target has 96', layer={"vocab_size": 95}),
    "rope width": GgufFault("dimension_count differs", UnsupportedError, options={"keys": {"rope.dimension_count": 4}}),
    "two head sizes": GgufFault("value_length", UnsupportedError, options={"keys": {"attention.value_length": 16}}),
    "ids unsorted": GgufFault("ids must be strictly ascending", extract_layers=[4, 2, 5]),
    "ids of either kind": GgufFault(r"\[1, 3, 5\] can mean", extract_layers=[1, 3, 5]),
    "switch": GgufFault("fc_norm is true .* no tensor fc_norm.", options={"keys": {"fc_norm": True}}),
    "unknown key": GgufFault("key eagle3.softcap is not", UnsupportedError, options={"keys": {"softcap": 30.0}}),
    "two layers": GgufFault("block_count is 2", UnsupportedError, options={"keys": {"block_count": 2}}),
    "rope type": GgufFault(
        "scaling.type is 'longrope'", UnsupportedError, options={"keys": {"rope.scaling.type": "longrope"}}
    ),
    "rope frequencies": GgufFault(
        "'rope_freqs.weight' is no llama3", UnsupportedError, options={"tensors": _FREQUENCIES}
    ),
    "unknown tensor": GgufFault(
        "'blk.1.x.weight' is not", UnsupportedError, options={"tensors": {"blk.1.x.weight": _ones(4)}}
    ),
    "norm twice": GgufFault(
        "'blk.0.hidden_norm.weight' is the second", options={"tensors": {"blk.0.hidden_norm.weight": _ones(32)}}
    ),
    "integers": GgufFault("'output_norm.weight' holds integers", weights={"norm.weight": np.ones(32, dtype=np.int64)}),
    "whole model": GgufFault("architecture is 'llama'", UnsupportedError, options={"architecture": "llama"}),
}
