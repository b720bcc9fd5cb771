"""One tiny draft written in every published format (eagle31_spec 3), keys and names as each exporter has them.

    target = write_target(folder / "target", TARGET, seed=1)
    source = SourceDraft(target)
    path = FORMATS["SpecForge"].write(folder / "draft", source)   # what LLM(...) is given: a folder or a GGUF file

The layer ids are the usual ones of an 8-layer target, (2, 4, 5); files that count layers say (1, 3, 4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eagle31rt.gguf_draft import convert_gguf_draft
from eagle31rt.safetensors_writer import RawTensor, save_safetensors
from eagle31rt.torch_checkpoint import convert_torch_checkpoint
from support.checkpoints import DRAFT_GRAPHS, DraftSpec, TargetSpec, TinyCheckpoint, draft_weights, target_config
from support.deepseek import latent_config
from support.draft_gguf import write_draft_gguf
from support.tensors import Array, stored
from support.torch_file import write_torch_file

DTYPE = "bfloat16"
# 40 of 96 ids, up to above 96 - 40: as target ids they could be no offsets.
TARGET = TargetSpec(num_layers=8, dtype=DTYPE, unigram_strength=0.5)
DRAFT = DraftSpec(draft_vocab_size=40, dtype=DTYPE)
STATES, LAYERS = [2, 4, 5], [1, 3, 4]
_KEY = "eagle_aux_hidden_state_layer_ids"
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_MODELOPT = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}

Config = dict[str, Any]


@dataclass(frozen=True)
class SourceDraft:
    """The draft that all formats hold. `spec` may have switches on, for the formats that can say so."""

    target: TinyCheckpoint
    spec: DraftSpec = DRAFT
    weights: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        assert isinstance(self.target.spec, TargetSpec)
        object.__setattr__(self, "weights", draft_weights(self.spec, self.target.spec, seed=2))

    @property
    def sizes(self) -> Config:
        """Sizes of the layers, as any flat file has them."""
        target = self.target.spec
        assert isinstance(target, TargetSpec)
        config = {
            "model_type": DRAFT_GRAPHS[self.spec.graph][1],
            "hidden_act": "silu",
            "hidden_size": target.hidden_size,
            "intermediate_size": self.spec.intermediate_size,
            "max_position_embeddings": 2048,
            "num_attention_heads": target.num_heads,
            "num_key_value_heads": target.num_kv_heads,
            "num_hidden_layers": self.spec.num_layers,
            "rms_norm_eps": self.spec.rms_norm_eps,
            "vocab_size": target.vocab_size,
        }
        if self.spec.graph == "deepseek":
            config |= {**latent_config(self.spec.latent), "num_key_value_heads": target.num_heads}
        return config

    @property
    def head_dim(self) -> Config:
        """The key that files of a latent attention do not have."""
        return {} if self.spec.graph == "deepseek" else {"head_dim": 8}

    @property
    def switches(self) -> Config:
        """The switches that are on."""
        names = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
        return {name: True for name in names if getattr(self.spec, name)}

    def tensors(self, layer: str, prefix: str = "", embedding: bool = False, t2d: bool = True) -> dict[str, RawTensor]:
        """In file spelling: `layer` is midlayer. or layers.0.; `prefix` stands before all but lm_head and tables."""
        weights = {name: values for name, values in self.weights.items() if t2d or name != "t2d"}
        if embedding:
            weights = {"embed_tokens.weight": self.target.weights["embed_tokens.weight"], **weights}
        plain = ("lm_head.weight", "d2t", "t2d")
        return {
            ("" if name in plain else prefix) + name.replace("layers.0.", layer): stored(values, DTYPE)
            for name, values in weights.items()
        }


def _write_json(directory: Path, config: Config) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def _safetensors(directory: Path, config: Config, tensors: Mapping[str, RawTensor]) -> Path:
    _write_json(directory, config)
    save_safetensors(directory / "model.safetensors", tensors)
    return directory


def _safeailab_config(source: SourceDraft) -> Config:
    """No head_dim, no rope_theta, no layer ids: its code has them built in."""
    config = {"architectures": ["LlamaForCausalLM"], **source.sizes, **_TOKENS, "initializer_range": 0.02}
    return {**config, "tie_word_embeddings": False, "torch_dtype": DTYPE, "draft_vocab_size": 40, "use_cache": True}


def write_safeailab_bin(directory: Path, source: SourceDraft) -> Path:
    _write_json(directory, _safeailab_config(source))
    write_torch_file(directory / "pytorch_model.bin", source.tensors("midlayer."))
    return directory


def write_safeailab(directory: Path, source: SourceDraft) -> Path:
    return _safetensors(directory, _safeailab_config(source), source.tensors("midlayer."))


def _eagle3_config(source: SourceDraft, **changes: Any) -> Config:
    config = {"architectures": ["LlamaForCausalLMEagle3"], **source.sizes, **_TOKENS, "attention_bias": False}
    if source.spec.graph != "llama":
        config["architectures"] = [DRAFT_GRAPHS[source.spec.graph][0]]
    config |= {**source.head_dim, "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": DTYPE}
    return {**config, "draft_vocab_size": 40, "tie_word_embeddings": False, **source.switches, **changes}


def write_specforge(directory: Path, source: SourceDraft) -> Path:
    ids = {"use_aux_hidden_state": True, _KEY: LAYERS}
    config = _eagle3_config(source, eagle_config=ids, num_aux_hidden_states=3, target_hidden_size=32)
    return _safetensors(directory, config, source.tensors("midlayer."))


def write_torchspec(directory: Path, source: SourceDraft, vllm: bool) -> Path:
    """Its exporter adds 1 to the ids for vLLM only if model_type is kimi_k2, as of a deepseek graph."""
    ids = STATES if vllm and source.sizes["model_type"] == "kimi_k2" else LAYERS
    eagle = {"use_aux_hidden_state": True, **_MODELOPT, _KEY: ids}
    config = _eagle3_config(source, _torchspec_version="0.1.0", eagle_config=eagle)
    tensors = source.tensors("layers.0." if vllm else "midlayer.", embedding=True)
    return _safetensors(directory, config, tensors)


def write_speculators(directory: Path, source: SourceDraft, architecture: str = "Eagle3DraftModel") -> Path:
    layer = {**source.sizes, **source.head_dim, "attention_bias": False, "mlp_bias": False}
    layer |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "layer_types": ["full_attention"]}
    config = {
        "architectures": [architecture],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 40,
        "norm_before_residual": False,
        "target_hidden_size": None,
        _KEY: STATES,
        "embed_requires_grad": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]},
        },
        "torch_dtype": DTYPE,
        **source.switches,
    }
    return _safetensors(directory, config, source.tensors("layers.0.", embedding=True))


def write_modelopt(directory: Path, source: SourceDraft, layer: str) -> Path:
    """Tokens are null, d2t comes without t2d; more layers have another architecture."""
    eagle = {"use_aux_hidden_state": True, **_MODELOPT, _KEY: LAYERS, "next_layer_regular": True}
    eagle |= {"parallel_draft_step": 1, "parallel_draft_heads_num_layers": None}
    config = _eagle3_config(source, eagle_config=eagle, mlp_bias=False, **dict.fromkeys(_TOKENS))
    config["architectures"] = ["LlamaForCausalLMEagle3Deep" if source.spec.num_layers > 1 else "LlamaForCausalLMEagle3"]
    return _safetensors(directory, config, source.tensors(layer, t2d=False))


def write_automodel(directory: Path, source: SourceDraft) -> Path:
    """The config of the target (of a qwen3 or deepseek model with experts), draft sizes set into it."""
    target = source.target.spec
    assert isinstance(target, TargetSpec)
    family = "deepseek_v3" if source.spec.graph == "deepseek" else "qwen3_moe"
    config = {
        **target_config(replace(target, model_type=family)),
        "architectures": ["LlamaEagle3DraftModel"],
        "intermediate_size": source.spec.intermediate_size,
        "layer_types": ["full_attention"] * target.num_layers,
        "draft_vocab_size": 40,
        "target_hidden_size": target.hidden_size,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "fc_norm": source.spec.fc_norm,
        "norm_output": source.spec.norm_output,
        "parallel_drafting": False,
        "dtype": DTYPE,
        "torch_dtype": None,
    }
    return _safetensors(directory, config, source.tensors("layers.0.", prefix="model.", embedding=True))


def write_vllm(directory: Path, source: SourceDraft) -> Path:
    config = _eagle3_config(source, num_aux_hidden_states=3, **{_KEY: STATES})
    if source.spec.graph == "llama":
        config["architectures"] = ["Eagle3LlamaForCausalLM"]
    return _safetensors(directory, config, source.tensors("layers.0."))


def gguf_layer(source: SourceDraft) -> Config:
    """The sizes that write_draft_gguf takes."""
    return {**source.sizes, "head_dim": 8, "rope_theta": 10000.0, "target_hidden_size": 32}


def write_gguf(directory: Path, source: SourceDraft, absolute: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "draft.gguf"
    weights = dict(source.weights)
    if absolute:
        weights["d2t"] = weights["d2t"] + np.arange(len(weights["d2t"]))
    write_draft_gguf(path, gguf_layer(source), weights, STATES, source.switches)
    return path


@dataclass(frozen=True)
class Format:
    """`recognised`: the name that the core gives the folder; None for a file that is converted first."""

    write: Callable[[Path, SourceDraft], Path]
    recognised: str | None
    switches: tuple[str, ...] = ()  # that the format can say
    graphs: tuple[str, ...] = ()  # of GRAPHS, besides one llama layer


GRAPHS = {
    "qwen3": replace(DRAFT, graph="qwen3"),
    "latent attention": replace(DRAFT, graph="deepseek"),
    "two layers": replace(DRAFT, num_layers=2),
}
_BOTH = ("fc_norm", "norm_output")
FORMATS: dict[str, Format] = {
    "SafeAILab": Format(write_safeailab, "SafeAILab"),
    "SafeAILab .bin": Format(write_safeailab_bin, None),
    "SpecForge": Format(write_specforge, "SpecForge", _BOTH),
    "TorchSpec": Format(partial(write_torchspec, vllm=False), "TorchSpec", _BOTH, ("latent attention",)),
    "TorchSpec --vllm": Format(partial(write_torchspec, vllm=True), "TorchSpec", _BOTH, ("latent attention",)),
    "speculators": Format(write_speculators, "speculators", (*_BOTH, "norm_before_residual"), ("qwen3", "two layers")),
    "speculators converted": Format(partial(write_speculators, architecture="Eagle3Speculator"), "speculators"),
    "NVIDIA ModelOpt": Format(partial(write_modelopt, layer="layers.0."), "NVIDIA ModelOpt", (), ("two layers",)),
    "NVIDIA ModelOpt, midlayer": Format(partial(write_modelopt, layer="midlayer."), "NVIDIA ModelOpt"),
    "NeMo Automodel": Format(write_automodel, "NeMo Automodel", _BOTH, ("latent attention",)),
    "vLLM": Format(write_vllm, "vLLM", (*_BOTH, "norm_before_residual"), tuple(GRAPHS)),
    "GGUF, d2t of target ids": Format(partial(write_gguf, absolute=True), None, (*_BOTH, "norm_before_residual")),
    "GGUF, d2t of offsets": Format(partial(write_gguf, absolute=False), None),
}


def draft_folder(path: Path, converted: Path) -> Path:
    """The Hugging Face folder of a written draft: `path` itself, or `converted` with what it is converted to."""
    if path.suffix == ".gguf":
        converted.mkdir()
        convert_gguf_draft(path, converted)
        return converted
    if (path / "pytorch_model.bin").exists():
        convert_torch_checkpoint(path, converted)
        return converted
    return path
