"""config.json of drafts: switches and their aliases, layer ids in both numberings, and refusals by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.checkpoints import DraftSpec, TargetSpec, draft_config, target_config

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, InvalidArgumentError, UnsupportedError

KEY = "eagle_aux_hidden_state_layer_ids"
SPECULATORS = DraftSpec(form="speculators")


def parse(
    spec: DraftSpec | None = None,
    num_layers: int = 32,
    *,
    overrides: dict[str, Any] | None = None,
    **changes: object,
) -> dict[str, Any]:
    """Parses a tiny draft config for a target of `num_layers`; `...` removes a key."""
    target = TargetSpec(num_layers=num_layers)
    config: dict[str, Any] = {**draft_config(spec or DraftSpec(), target), **changes}
    config = {key: value for key, value in config.items() if value is not ...}
    texts = json.dumps(config).encode(), json.dumps(target_config(target)).encode()
    return _testing.parse_draft_config(*texts, **(overrides or {}))


def layers(
    ids: list[int] | None, num_layers: int, spec: DraftSpec | None = None, **changes: object
) -> tuple[list[int], str]:
    changes.setdefault("num_aux_hidden_states", ...)
    config = parse(spec, num_layers, **{KEY: ids if ids is not None else ..., **changes})
    return config["capture_layers"], config["capture_rule"]


@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_every_field(form: str) -> None:
    spec = DraftSpec(form=form, hidden_size=48, intermediate_size=72, num_heads=3, num_kv_heads=1, head_dim=24,
                     draft_vocab_size=20, fc_bias=True, attention_bias=True, mlp_bias=True, rope_theta=5e5,
                     rms_norm_eps=1e-4, dtype="float16", norm_before_residual=True)  # fmt: skip
    config = parse(spec)
    assert config["rope"]["theta"] == 5e5 and config["rope"]["rotary_dim"] == 24
    assert config["rms_norm_eps"] == pytest.approx(1e-4)
    expected = {"hidden_size": 48, "target_hidden_size": 32, "intermediate_size": 72, "num_heads": 3, "num_kv_heads": 1,
                "head_dim": 24, "vocab_size": 96, "draft_vocab_size": 20, "qkv_bias": True, "mlp_bias": True,
                "fc_bias": True, "dtype": "float16", "norm_before_residual": True, "fc_norm": False,
                "norm_before_fc": False, "norm_output": False, "tie_word_embeddings": False}  # fmt: skip
    assert {key: config[key] for key in expected} == expected


def test_defaults() -> None:
    absent = dict.fromkeys(
        ("target_hidden_size", "draft_vocab_size", "torch_dtype", "fc_norm", "norm_output", "norm_before_fc", "bias",
         "norm_before_residual", "attention_bias", "mlp_bias", "head_dim", "num_key_value_heads", "num_hidden_layers",
         "model_type", "architectures", "rope_theta", "rope_scaling", "num_aux_hidden_states", "rms_norm_eps"), ...
    )  # fmt: skip
    config = parse(**absent)
    assert (config["target_hidden_size"], config["draft_vocab_size"], config["dtype"]) == (32, 96, "float32")
    assert (config["head_dim"], config["num_kv_heads"], config["rope"]["theta"]) == (8, 4, 10000.0)
    assert not any(
        config[key] for key in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "fc_bias")
    )


# ---------------------------------------------------------------- switches


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("fc_norm", {"fc_norm": ...}),
        ("fc_norm", {"fc_norm": ..., "use_aux_norm": ...}),
        ("norm_output", {"norm_output": ...}),
        ("norm_output", {"norm_output": ..., "eagle_config": {"return_hidden_post_norm": ...}}),
        ("norm_before_fc", {"norm_before_fc": ...}),
        ("norm_before_fc", {"norm_before_fc": ..., "eagle_config": {"norm_before_fc": ...}}),
        ("norm_before_residual", {"norm_before_residual": ...}),
    ],
)
def test_switches_and_aliases(field: str, changes: dict[str, Any], value: bool) -> None:
    """The last key of `changes` is set to the value; earlier ones are absent."""
    keys = list(changes)
    filled: dict[str, Any] = dict.fromkeys(keys, ...)
    inner = changes[keys[-1]]
    filled[keys[-1]] = dict.fromkeys(inner, value) if isinstance(inner, dict) else value
    config = parse(**filled)
    switches = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    assert {key: config[key] for key in switches} == {key: value and key == field for key in switches}


def test_norm_before_fc_in_either_place() -> None:
    assert parse(norm_before_fc=..., eagle_config={"norm_before_fc": True})["norm_before_fc"]
    assert parse(norm_before_fc=True, eagle_config={"norm_before_fc": True})["norm_before_fc"]
    for top in (True, False):  # engines differ in which of the two they read
        with pytest.raises(CheckpointError, match="norm_before_fc"):
            parse(norm_before_fc=top, eagle_config={"norm_before_fc": not top})
    assert parse(norm_before_fc=True, eagle_config={})["norm_before_fc"]


@pytest.mark.parametrize(("feedback", "expected"), [("auto", None), ("pre", False), ("post", True)])
@pytest.mark.parametrize("written", [True, False])
def test_feedback_override(feedback: str, expected: bool | None, written: bool) -> None:
    config = parse(norm_output=written, overrides={"feedback": feedback})
    assert config["norm_output"] == (written if expected is None else expected)


# ---------------------------------------------------------------- layer ids


@pytest.mark.parametrize(
    ("ids", "num_layers", "expected", "rule"),
    [
        # eagle31_spec 1.1, worked cases
        ([1, 29, 57], 61, [2, 30, 58], "layer output"),
        ([2, 30, 58], 61, [2, 30, 58], "residual index"),
        ([1, 45, 89], 93, [2, 46, 90], "layer output"),
        ([2, 46, 90], 93, [2, 46, 90], "residual index"),
        ([1, 15, 28], 32, [2, 16, 29], "layer output"),
        ([2, 21, 39], 42, [2, 21, 39], "residual index"),
        ([24, 30, 36], 36, [24, 30, 36], "id equal to the number of layers"),
        ([1, 17, 32], 36, [2, 18, 33], "layer output"),
        # the smallest target with a default list
        ([2, 3, 4], 7, [2, 3, 4], "residual index"),
        ([1, 2, 3], 7, [2, 3, 4], "layer output"),
        # 1 to 8 states, embeddings included
        ([32], 32, [32], "id equal"),
        ([0, 5, 10, 15, 20, 25, 30, 32], 32, [0, 5, 10, 15, 20, 25, 30, 32], "id equal"),
        (None, 30, [2, 15, 27], "no ids: default"),
        (None, 7, [2, 3, 4], "no ids: default"),
    ],
)  # fmt: skip
def test_layer_id_resolver(ids: list[int] | None, num_layers: int, expected: list[int], rule: str) -> None:
    found, why = layers(ids, num_layers)
    assert found == expected
    assert rule in why


def test_speculators_files_count_residual_states() -> None:
    assert layers([1, 17, 33], 36, SPECULATORS) == ([1, 17, 33], "speculators")
    assert layers([1, 15, 28], 32, SPECULATORS) == ([1, 15, 28], "speculators")
    assert layers([2, 46, 91, 93], 94, SPECULATORS) == ([2, 46, 91, 93], "speculators")


@pytest.mark.parametrize("ids", [[1, 17, 33], [5], [2, 16], [0, 1, 2], [2, 16, 28], [1, 20, 39]])
def test_ambiguous_ids_are_refused_with_both_readings(ids: list[int]) -> None:
    other = ", ".join(str(i + 1) for i in ids)
    with pytest.raises(CheckpointError) as caught:
        layers(ids, 40)
    message = str(caught.value)
    assert f"after {ids} layers" in message and f"after [{other}]" in message
    assert 'layer_id_convention "residual_index"' in message and '"layer_output"' in message


def test_overrides() -> None:
    def resolve(ids: list[int] | None, **overrides: Any) -> tuple[list[int], str]:
        return layers(ids, 36, overrides=overrides)

    assert resolve([1, 17, 33], layer_id_convention="residual_index") == ([1, 17, 33], "convention override")
    assert resolve([1, 17, 33], layer_id_convention="layer_output") == ([2, 18, 34], "convention override")
    # an override beats every other rule
    assert resolve([2, 18, 33], layer_id_convention="layer_output")[0] == [3, 19, 34]
    assert resolve([1, 17, 33], capture_layers=[0, 36]) == ([0, 36], "override")
    assert resolve(None, capture_layers=[4]) == ([4], "override")
    assert layers([1, 2, 3], 36, SPECULATORS, overrides={"layer_id_convention": "layer_output"})[0] == [2, 3, 4]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"layer_id_convention": "sglang"}, 'layer_id_convention is "sglang"'),
        ({"feedback": "both"}, 'feedback is "both"; give auto, pre or post'),
        ({"capture_layers": [2, 1]}, r"capture_layers is \[2, 1\]; ids must be strictly ascending"),
        ({"capture_layers": [1, 33]}, "after 33 layers; the target has 32"),
        ({"capture_layers": [-1, 3]}, "after -1 layers"),
        ({"capture_layers": list(range(9))}, "has 9 ids; 1 to 8"),
        ({"capture_layers": [1], "layer_id_convention": "layer_output"}, "give one of the two"),
    ],
)
def test_wrong_overrides(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(overrides=overrides, num_aux_hidden_states=...)


@pytest.mark.parametrize("places", [("top",), ("eagle_config",), ("top", "eagle_config")])
def test_places_of_the_ids(places: tuple[str, ...]) -> None:
    assert parse(DraftSpec(id_places=places))["capture_layers"] == [2, 16, 29]


@pytest.mark.parametrize("convention", ["residual_index", "layer_output", "none"])
def test_generated_ids_resolve_to_the_usual_layers(convention: str) -> None:
    assert parse(DraftSpec(id_convention=convention))["capture_layers"] == [2, 16, 29]


WRONG_IDS: dict[str, tuple[list[int], str]] = {
    "unsorted": ([2, 1, 32], r"\[2, 1, 32\]; ids must be strictly ascending"),
    "repeated": ([2, 2, 32], "strictly ascending"),
    "negative": ([-1, 2, 32], "after -1 layers"),
    "past the end": ([2, 33], "after 33 layers; the target has 32"),
    "none": ([], "has 0 ids"),
    "nine": ([*range(8), 32], "has 9 ids"),
}


@pytest.mark.parametrize("case", WRONG_IDS)
def test_wrong_ids(case: str) -> None:
    ids, message = WRONG_IDS[case]
    with pytest.raises(CheckpointError, match=message):
        layers(ids, 32)


def test_layer_output_of_the_last_layer_plus_one_is_refused() -> None:
    with pytest.raises(CheckpointError, match="after 33 layers"):
        layers([2, 32], 32, overrides={"layer_id_convention": "layer_output"})


def test_no_default_for_short_targets_or_other_counts() -> None:
    with pytest.raises(CheckpointError, match="needs a target of 7 or more layers, not 6"):
        layers(None, 6)
    with pytest.raises(CheckpointError, match="no layer ids for its 4 captured states"):
        layers(None, 32, num_aux_hidden_states=4)


# ---------------------------------------------------------------- refusals

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both norms": ({"fc_norm": True, "norm_before_fc": True}, "norm_before_fc and fc_norm are both true"),
    "fc_norm aliases": ({"fc_norm": True, "use_aux_norm": False}, '"fc_norm" is true but "use_aux_norm" is false'),
    "norm_output aliases": (
        {"norm_output": False, "eagle_config": {"return_hidden_post_norm": True}},
        '"eagle_config.return_hidden_post_norm"',
    ),
    "switch a number": ({"fc_norm": 1}, '"fc_norm" is 1; it must be true or false'),
    "ids differ": ({"eagle_config": {KEY: [2, 15, 29]}}, f'"eagle_config.{KEY}" is'),
    "ids as text": ({KEY: ["2"]}, "must be an integer"),
    "count": ({"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4, but 3 layers are captured"),
    "count 9": ({"num_aux_hidden_states": 9}, '"num_aux_hidden_states" is 9'),
    "vocabulary": ({"vocab_size": 95}, '"vocab_size" is 95, but the target has 96'),
    "target width": ({"target_hidden_size": 64}, '"target_hidden_size" is 64, but the target has 32'),
    "hidden size": ({"target_hidden_size": ..., "hidden_size": 64}, "the hidden size is 64, but the target has 32"),
    "draft vocabulary": ({"draft_vocab_size": 97}, '"draft_vocab_size" is 97'),
    "two vocabularies": ({"draft_vocab_size": 20, "truncated_vocab_size": 21}, "keep one"),
    "whole model": (
        {"num_hidden_layers": 32, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": ..., KEY: ...},
        "not an EAGLE draft: it describes a whole model of 32 layers",
    ),
    "eagle_config a list": ({"eagle_config": []}, '"eagle_config" is'),
    "architectures a text": ({"architectures": "x"}, '"architectures" is "x"'),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_value(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        parse(**changes)


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "no captured states": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        '"eagle_config.use_aux_hidden_state" is false',
    ),
    "no input norm": (
        {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
        "use_input_layernorm_in_first_layer",
    ),
    "no last norm": ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm"),
    "mtp norm": ({"eagle_config": {"use_mtp_layernorm": True}}, '"eagle_config.use_mtp_layernorm" is true'),
    "eh_proj": ({"eagle_config": {"eh_proj_before_attn": True}}, "eh_proj_before_attn"),
    "parallel steps": ({"eagle_config": {"parallel_draft_step": 4}}, '"eagle_config.parallel_draft_step" is 4'),
    "ids of vLLM V2": ({"eagle_config": {"layer_ids": [1]}}, '"eagle_config.layer_ids"'),
    "parallel drafting": ({"parallel_drafting": True}, '"parallel_drafting" is true'),
    "mask token": ({"mask_token_id": 5}, '"mask_token_id" is 5'),
    "P-EAGLE": ({"architectures": ["PEagleDraftModel"]}, "P-EAGLE"),
    "P-EAGLE of speculators": ({"speculators_model_type": "peagle"}, '"peagle" is not supported'),
    "MLA keys": ({"kv_lora_rank": 512}, '"kv_lora_rank" is 512'),
    "model type": (
        {"model_type": "gemma3"},
        '"model_type" of a draft is "gemma3"; supported are llama, mistral, qwen3',
    ),
    "EAGLE-1": ({"architectures": ["LlamaForCausalLMEagle"]}, "EAGLE-1"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, '"quantization_config" is'),
    "activation": ({"hidden_act": "gelu"}, '"hidden_act"'),
    "chunks": ({"layer_types": ["chunked_attention"]}, "chunked_attention"),
    "logit scale": ({"logit_scale": 0.5}, '"logit_scale" is 0.5'),
    "rope": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, '"dynamic"'),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case: str) -> None:
    changes, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=message):
        parse(**changes)


def test_sliding_windows() -> None:
    """layer_types decides; without it engines read the key differently, so that it is refused."""
    types = ["full_attention", "sliding_attention"]
    two = DraftSpec(num_layers=2)
    latent = DraftSpec(graph="deepseek")
    parse(two, layer_types=types, sliding_window=16)
    parse(DraftSpec(), layer_types=["full_attention"] * 32, sliding_window=16)  # those of the target, copied
    parse(DraftSpec(), sliding_window=16, use_sliding_window=False)
    for spec, changes, message in (
        (two, {"layer_types": types}, 'lacks "sliding_window"'),
        (two, {"layer_types": types[1:], "sliding_window": 16}, "has 1 entries for 2 layers"),
        (two, {"layer_types": types, "sliding_window": 0}, '"sliding_window" is 0; it must be an integer from 1'),
        (two, {"layer_types": types, "sliding_window": 16, "use_sliding_window": False}, "is false"),
        (two, {"sliding_window": 16}, "does not say which layers have it; add the list, .* each of the 2 layers"),
        (two, {"sliding_window": 16, "use_sliding_window": True}, '"sliding_window" is 16, but "layer_types"'),
        (latent, {"layer_types": types[1:], "sliding_window": 16}, "of a latent attention is not supported"),
    ):
        with pytest.raises((CheckpointError, UnsupportedError), match=message):
            parse(spec, **changes)


def test_speculators_without_layer_config() -> None:
    with pytest.raises(CheckpointError, match='no "transformer_layer_config"'):
        parse(SPECULATORS, transformer_layer_config=...)


def test_speculators_default_of_norm_before_residual_is_refused() -> None:
    with pytest.raises(CheckpointError, match='lacks "norm_before_residual"'):
        parse(SPECULATORS, norm_before_residual=...)


def test_unsupported_option_in_the_inner_config() -> None:
    inner = draft_config(SPECULATORS, TargetSpec(num_layers=32))["transformer_layer_config"]
    for change in ({"layer_types": ["chunked_attention"]}, {"model_type": "gemma3"}, {"qk_norm": True}):
        with pytest.raises(UnsupportedError, match=next(iter(change))):
            parse(SPECULATORS, transformer_layer_config={**inner, **change})


def test_truncated_vocab_size_is_an_alias() -> None:
    assert parse(draft_vocab_size=..., truncated_vocab_size=20)["draft_vocab_size"] == 20
    assert parse(draft_vocab_size=20, truncated_vocab_size=20)["draft_vocab_size"] == 20


def test_rope_of_the_draft_is_its_own() -> None:
    rope = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    config = parse(DraftSpec(rope_scaling=rope, rope_theta=150000.0))
    assert config["rope"]["kind"] == "yarn" and config["rope"]["theta"] == 150000.0 and not config["rope"]["truncate"]
