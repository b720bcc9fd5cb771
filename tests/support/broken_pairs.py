"""A tiny valid pair and what can be wrong with one: each fault with the rule that must find it.

pair = write_pair(folder)
BROKEN["d2t past the vocabulary"].apply(pair)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle31rt.safetensors_writer import RawTensor
from support.checkpoints import DraftSpec, TargetSpec, TinyCheckpoint, write_draft, write_target
from support.deepseek import DeepseekSizes, latent_config
from support.loading import rewrite
from support.tensors import Array

TARGET = TargetSpec(num_layers=8)
DRAFT = DraftSpec(draft_vocab_size=20)
IDS = "eagle_aux_hidden_state_layer_ids"
_NO_COUNT = {"num_aux_hidden_states": None}

Tensors = dict[str, "RawTensor | Array | None"]


@dataclass
class Pair:
    target: TinyCheckpoint
    draft: TinyCheckpoint


def write_pair(folder: Path, spec: DraftSpec = DRAFT) -> Pair:
    target = write_target(folder / "target", TARGET)
    return Pair(target, write_draft(folder / "draft", target, spec))


@dataclass(frozen=True)
class Broken:
    """`rule` finds it with `message`, a regular expression. `options`: arguments of examine and of the engine."""

    rule: str
    message: str
    apply: Callable[[Pair], object]
    spec: DraftSpec = DRAFT
    status: str = "refused"
    options: dict[str, Any] = field(default_factory=dict)


def config(**changes: Any) -> Callable[[Pair], object]:
    """Changes config.json of the draft; None is null, which counts as absent."""
    return lambda pair: rewrite(pair.draft, {}, changes)


def tensors(**changes: RawTensor | Array | None) -> Callable[[Pair], object]:
    """Changes tensors of the draft: __ in a name stands for a dot."""
    return lambda pair: rewrite(pair.draft, {name.replace("__", "."): value for name, value in changes.items()})


def targets_config(**changes: Any) -> Callable[[Pair], object]:
    return lambda pair: rewrite(pair.target, {}, changes)


def replace_draft(pair: Pair) -> None:
    """A whole model in the folder of the draft."""
    pair.draft = write_target(pair.draft.directory, TARGET, seed=3)


def point_at_target(pair: Pair) -> None:
    pair.draft = pair.target


def cut_file(pair: Pair) -> None:
    path = pair.draft.directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def write_text(pair: Pair, text: str) -> None:
    (pair.draft.directory / "config.json").write_text(text)


def offsets(*ids: int) -> Array:
    return np.array(ids, dtype=np.int64) - np.arange(len(ids), dtype=np.int64)


def flags(*ids: int) -> Array:
    return np.isin(np.arange(TARGET.vocab_size), ids)


_ONES = np.ones(32)
_WIDE = DraftSpec(hidden_size=40, num_heads=5, num_kv_heads=1)
_SPECULATORS = DraftSpec(form="speculators", spelling="layers")

BROKEN: dict[str, Broken] = {
    "a draft as target": Broken("target-config", "it is a draft; give it as", targets_config(draft_vocab_size=20)),
    "a target of another family": Broken("target-config", '"mamba" is not supp', targets_config(model_type="mamba")),
    "a target without one tensor": Broken(
        "target-tensors", 'lacks .*"norm.weight"', lambda pair: rewrite(pair.target, {"model.norm.weight": None})
    ),
    "a length beyond the target's": Broken(
        "max-model-len", "max_model_len is 600; .* is 512", lambda pair: None, status="fixable",
        options={"max_model_len": 600},
    ),
    "the target as draft": Broken("draft-is-target", "the draft is the target itself", point_at_target),
    "no JSON": Broken("draft-format", "JSON", lambda pair: write_text(pair, "{")),
    "speculators without a layer": Broken(
        "draft-format", 'no "transformer_layer_config"', config(transformer_layer_config=None), _SPECULATORS
    ),
    "another method of speculators": Broken("draft-format", "dflash", config(speculators_model_type="dflash")),
    "Medusa": Broken("architecture", "is Medusa", config(architectures=["MedusaModel"])),
    "EAGLE-1": Broken("architecture", "EAGLE-1 head", config(architectures=["LlamaForCausalLMEagle"])),
    "a whole model": Broken("whole-model", "describes a whole model of 8 layers", replace_draft),
    "P-EAGLE by its config": Broken("parallel-drafting", '"mask_token_id" is 5', config(mask_token_id=5)),
    "P-EAGLE by its tensors": Broken("parallel-drafting", "mask_hidden", tensors(mask_hidden=np.ones((1, 1, 96)))),
    "EAGLE-1 input": Broken(
        "graph-options", "use_aux_hidden_state. is false", config(eagle_config={"use_aux_hidden_state": False})
    ),
    "a scaled head": Broken("graph-options", '"logit_scale" is 0.5', config(logit_scale=0.5)),
    "quantised by its config": Broken(
        "quantised-draft", "quantization_config", config(quantization_config={"quant_method": "fp8"})
    ),
    "quantised by its tensors": Broken("quantised-draft", "weight_scale", tensors(fc__weight_scale=np.ones(1))),
    "a sliding window": Broken("sliding-window", '"sliding_window" is 64', config(sliding_window=64)),
    "a window of unknown layers": Broken(
        "sliding-window", "add the list", config(sliding_window=64, use_sliding_window=True)
    ),
    "layers of chunks": Broken("sliding-window", '"chunked_attention"', config(layer_types=["chunked_attention"])),
    "latent attention in the config only": Broken(
        "architecture", 'belongs to the llama graph, .* remove q_lora_rank, kv_lora_rank',
        config(model_type="deepseek_v3", num_key_value_heads=4, **latent_config(DeepseekSizes())),
    ),
    "heads that do not divide": Broken("layer-sizes", "not a multiple of", config(num_key_value_heads=3)),
    "another vocabulary": Broken("vocabulary", '"vocab_size" is 95, but the target has 96', config(vocab_size=95)),
    "another width": Broken("hidden-size", '"target_hidden_size" is 64, but', config(target_hidden_size=64)),
    "two draft vocabularies": Broken("draft-vocabulary", "keep one", config(truncated_vocab_size=21)),
    "both norms before fc": Broken("switches", "are both true", config(fc_norm=True, norm_before_fc=True)),
    "two values of a switch": Broken(
        "switches", '"fc_norm" is true but "use_aux_norm" is false', config(fc_norm=True, use_aux_norm=False)
    ),
    "speculators without its residual switch": Broken(
        "norm-before-residual", 'lacks "norm_before_residual"', config(norm_before_residual=None), _SPECULATORS
    ),
    "ids out of order": Broken("layer-ids", "strictly ascending", config(**{IDS: [4, 2, 5]})),
    "ids out of range": Broken("layer-ids", "after 9 layers; the target has 8", config(**{IDS: [2, 4, 9]})),
    "ids of either numbering": Broken(
        "layer-ids", "can mean the states after", config(**{IDS: [1, 4, 6]}), status="fixable"
    ),
    "four states announced": Broken("layer-ids", "is 4, but 3 layers", config(num_aux_hidden_states=4)),
    "rope of another type": Broken(
        "rope", '"dynamic" is not supported', config(rope_scaling={"rope_type": "dynamic", "factor": 2})
    ),
    "another dtype": Broken("dtype", '"float64" is not supported', config(torch_dtype="float64")),
    "a file cut short": Broken("draft-files", "model.safetensors", cut_file),
    "one weight twice": Broken("tensor-names", "are the same weight", tensors(layers__0__hidden_norm__weight=_ONES)),
    "a switch without its tensors": Broken("switch-tensors", "fc_norm is true .* no tensor", config(fc_norm=True)),
    "tensors without their switch": Broken(
        "switch-tensors", "but norm_before_fc is not true", tensors(input_norm__weight=np.ones(96))
    ),
    "fc for two states": Broken("fc", "has 64 columns, but 3", tensors(fc__weight=np.ones((32, 64)))),
    "no d2t": Broken("d2t", 'lacks tensor "d2t": the draft has 20 of 96', tensors(d2t=None)),
    "d2t past the vocabulary": Broken("d2t", "leaves the voc", tensors(d2t=offsets(*range(19), 96), t2d=None)),
    "d2t that descends": Broken("d2t", "after 9", tensors(d2t=offsets(9, 8, *range(20, 38)), t2d=None)),
    "t2d of other ids": Broken(
        "t2d", "which .* leaves out", tensors(d2t=offsets(*range(20)), t2d=flags(*range(1, 21)))
    ),
    "no embedding for its width": Broken("embedding", "cannot be shared", tensors(embed_tokens__weight=None), _WIDE),
    "no head for a smaller vocabulary": Broken("head", 'lacks tensor "lm_head.weight"', tensors(lm_head__weight=None)),
    "a norm of another size": Broken("tensor-shapes", r"shape \[31\], but", tensors(norm__weight=np.ones(31))),
    "no hidden_norm": Broken("tensors-missing", "hidden_norm", tensors(midlayer__hidden_norm__weight=None)),
    "a tensor of another graph": Broken("tensors-unused", '"enorm.weight"', tensors(enorm__weight=_ONES)),
}  # fmt: skip
