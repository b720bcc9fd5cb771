"""config.json of targets: what is read from it, every default, and a refusal by name for what cannot run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.checkpoints import TargetSpec, target_config

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError


def parse(spec: TargetSpec | None = None, generation: object = None, **changes: object) -> dict[str, Any]:
    """Parses the tiny config with some keys changed; `...` removes a key."""
    config: dict[str, Any] = {**target_config(spec or TargetSpec()), **changes}
    config = {key: value for key, value in config.items() if value is not ...}
    generation_text = b"" if generation is None else json.dumps(generation).encode()
    return _testing.parse_decoder_config(json.dumps(config).encode(), generation_text)


def test_every_field() -> None:
    config = parse(
        TargetSpec(num_layers=3, hidden_size=48, intermediate_size=80, num_heads=6, num_kv_heads=2, head_dim=16,
                   vocab_size=50, max_position_embeddings=77, rms_norm_eps=2e-5, tie_word_embeddings=True,
                   rope_theta=5e5, dtype="float16", eos_token_id=7)
    )  # fmt: skip
    rope = config.pop("rope")
    assert rope["kind"] == "default" and rope["theta"] == 5e5 and rope["rotary_dim"] == 16 and not rope["interleaved"]
    assert config.pop("rms_norm_eps") == pytest.approx(2e-5, rel=1e-6)
    assert config == {
        "model_type": "llama",
        "num_layers": 3,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 50,
        "max_position_embeddings": 77,
        "tie_word_embeddings": True,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "dtype": "float16",
        "eos_token_ids": [7],
    }


def test_defaults() -> None:
    absent = dict.fromkeys(
        ("num_key_value_heads", "hidden_act", "rms_norm_eps", "tie_word_embeddings", "torch_dtype", "eos_token_id",
         "attention_bias", "mlp_bias", "rope_theta", "rope_scaling"), ...
    )  # fmt: skip
    config = parse(**absent)
    assert config["num_kv_heads"] == config["num_heads"] == 4
    assert config["head_dim"] == 8
    assert config["rms_norm_eps"] == pytest.approx(1e-6)
    assert config["rope"]["theta"] == 10000.0
    assert config["dtype"] == "float32"
    assert config["eos_token_ids"] == []
    assert not config["tie_word_embeddings"] and not config["qkv_bias"] and not config["mlp_bias"]


@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_families_with_another_default_need_kv_heads(model_type: str) -> None:
    with pytest.raises(CheckpointError, match='lacks "num_key_value_heads"'):
        parse(TargetSpec(model_type=model_type), num_key_value_heads=...)


@pytest.mark.parametrize(
    ("model_type", "attention_bias", "mlp_bias", "expected"),
    [
        ("llama", False, False, (False, False, False)),
        ("llama", True, False, (True, True, False)),
        ("smollm", False, True, (False, False, True)),
        ("mistral", False, False, (False, False, False)),
        ("qwen2", False, False, (True, False, False)),
    ],
)
def test_biases(model_type: str, attention_bias: bool, mlp_bias: bool, expected: tuple[bool, bool, bool]) -> None:
    config = parse(TargetSpec(model_type=model_type), attention_bias=attention_bias, mlp_bias=mlp_bias)
    assert (config["qkv_bias"], config["output_bias"], config["mlp_bias"]) == expected


@pytest.mark.parametrize(
    ("config_ids", "generation", "expected"),
    [
        (2, None, [2]),
        ([5, 2, 5], None, [5, 2]),
        (2, {"eos_token_id": [2, 9, 3]}, [2, 9, 3]),
        (None, {"eos_token_id": 4}, [4]),
        (2, {"eos_token_id": None}, [2]),
        (2, {}, [2]),
    ],
)
def test_eos_ids(config_ids: object, generation: object, expected: list[int]) -> None:
    assert parse(generation=generation, eos_token_id=config_ids)["eos_token_ids"] == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": ..., "dtype": "float16"}, "float16"),
        ({"torch_dtype": "bfloat16", "dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, "float32"),
    ],
)
def test_dtype_spellings(keys: dict[str, object], expected: str) -> None:
    assert parse(**keys)["dtype"] == expected


def test_qwen3_moe() -> None:
    config = parse(TargetSpec(model_type="qwen3_moe", experts=(128, 8, 768)))
    assert config["qk_norm"] and not config["qkv_bias"]
    assert config["moe"] == {
        "num_experts": 128,
        "num_experts_per_token": 8,
        "moe_intermediate_size": 768,
        "num_shared_experts": 0,
        "num_dense_layers": 0,
        "num_groups": 1,
        "num_groups_chosen": 1,
        "sigmoid": False,
        "normalise_top_k": True,
        "routed_scaling_factor": 1.0,
        "bias_correction": False,
    }
    assert "moe" not in parse(TargetSpec(model_type="qwen3"))


MOE_REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "more than there are": (
        {"num_experts_per_tok": 7},
        '"num_experts_per_tok" is 7; it must be an integer from 1',
    ),
    "too many": ({"num_experts": 1025}, '"num_experts" is 1025; it must be an integer from 1 to 1024'),
    "no width": ({"moe_intermediate_size": ...}, 'lacks "moe_intermediate_size"'),
    "no head_dim": ({"head_dim": ...}, 'lacks "head_dim"'),
    "every second layer": ({"decoder_sparse_step": 2}, '"decoder_sparse_step" is 2'),
    "plain layers": ({"mlp_only_layers": [1]}, '"mlp_only_layers" lists layers'),
}


@pytest.mark.parametrize("case", MOE_REFUSED)
def test_experts_refused(case: str) -> None:
    changes, message = MOE_REFUSED[case]
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        parse(TargetSpec(model_type="qwen3_moe"), **changes)


def test_neutral_values_of_refused_options() -> None:
    neutral = {"quantization_config": None, "num_experts": 0, "logit_scale": 1.0, "qk_norm": False, "q_lora_rank": None}
    assert parse(**neutral)["num_layers"] == 4


UNSUPPORTED: dict[str, tuple[dict[str, object], str]] = {
    "unknown model": (
        {"model_type": "gpt2"},
        '"gpt2" is not supported; supported are llama, smollm, mistral, qwen2, qwen3',
    ),
    "quantised": ({"quantization_config": {"bits": 4}}, '"quantization_config.quant_method" is '),
    "experts": ({"num_local_experts": 8}, '"num_local_experts" is 8; mixture of experts'),
    "experts of qwen": ({"num_experts": 60}, '"num_experts" is 60'),
    "experts of deepseek": ({"n_routed_experts": 64}, '"n_routed_experts" is 64'),
    "latent attention": ({"kv_lora_rank": 512}, '"kv_lora_rank" is 512'),
    "softcapping": ({"final_logit_softcapping": 30.0}, '"final_logit_softcapping" is 30'),
    "scaled logits": ({"logit_scale": 0.0625}, '"logit_scale" is 0.0625'),
    "qk norm": ({"use_qk_norm": True}, '"use_qk_norm" is true'),
    "no rope": ({"no_rope_layers": [1, 0]}, '"no_rope_layers" is'),
    "activation": ({"hidden_act": "gelu"}, '"hidden_act" is "gelu"'),
    "window": ({"sliding_window": 100}, '"sliding_window" is 100, below max_position_embeddings'),
    "layer types": ({"layer_types": ["full_attention", "sliding_attention"]}, '"sliding_attention"'),
    "qwen2 biases": ({"model_type": "qwen2", "attention_bias": True}, '"attention_bias" is true; qwen2'),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, 'dtype "float8_e4m3fn" is not supported'),
    "head_dim 12": ({"head_dim": 12}, "head_dim is 12; supported are multiples of 8"),
    "derived head_dim 264": ({"hidden_size": 1056}, "head_dim is 264"),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope type "dynamic"'),
    "longrope": ({"rope_scaling": {"rope_type": "longrope"}}, 'rope type "longrope"'),
    "mrope": ({"rope_scaling": {"type": "mrope"}}, 'rope type "mrope"'),
    "mrope section": ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, '"mrope_section"'),
    "attn_factor": (
        {"rope_scaling": {"type": "yarn", "factor": 2, "attn_factor": 2.0}},
        'rope option "attn_factor" = 2',
    ),
    "rope per layer type": ({"rope_parameters": {"full_attention": {}}}, '"full_attention"'),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case: str) -> None:
    changes, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=message):
        parse(**changes)


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "no model type": ({"model_type": ...}, 'lacks "model_type"'),
    "model type a number": ({"model_type": 3}, '"model_type" is 3; it must be a string'),
    "no layers": ({"num_hidden_layers": ...}, 'lacks "num_hidden_layers"'),
    "zero layers": ({"num_hidden_layers": 0}, '"num_hidden_layers" is 0; it must be an integer from 1 to 1024'),
    "many layers": ({"num_hidden_layers": 10**9}, '"num_hidden_layers" is 1000000000'),
    "negative hidden": ({"hidden_size": -32}, '"hidden_size" is -32'),
    "huge hidden": ({"hidden_size": 2**40}, '"hidden_size" is 1099511627776'),
    "hidden of 1e300": ({"hidden_size": 1e300}, '"hidden_size" is 1e'),
    "fractional hidden": ({"hidden_size": 32.5}, '"hidden_size" is 32.5'),
    "hidden as text": ({"hidden_size": "32"}, '"hidden_size" is "32"'),
    "hidden as bool": ({"hidden_size": True}, '"hidden_size" is true'),
    "no intermediate": ({"intermediate_size": None}, 'lacks "intermediate_size"'),
    "zero heads": ({"num_attention_heads": 0}, '"num_attention_heads" is 0'),
    "kv heads": (
        {"num_key_value_heads": 3},
        '"num_attention_heads" is 4, not a multiple of "num_key_value_heads", which is 3',
    ),
    "more kv heads": ({"num_key_value_heads": 8}, "not a multiple"),
    "hidden and heads": ({"hidden_size": 33}, '"hidden_size" is 33, not a multiple'),
    "head_dim 512": ({"head_dim": 512}, '"head_dim" is 512'),
    "vocab": ({"vocab_size": 2**23}, '"vocab_size" is 8388608'),
    "no vocab": ({"vocab_size": ...}, 'lacks "vocab_size"'),
    "no positions": ({"max_position_embeddings": ...}, 'lacks "max_position_embeddings"'),
    "negative eps": ({"rms_norm_eps": -1e-6}, '"rms_norm_eps" is -1e-06'),
    "zero eps": ({"rms_norm_eps": 0}, '"rms_norm_eps" is 0'),
    "eps as text": ({"rms_norm_eps": "1e-6"}, '"rms_norm_eps" is "1e-6"'),
    "tie as number": ({"tie_word_embeddings": 1}, '"tie_word_embeddings" is 1; it must be true or false'),
    "eos outside": ({"eos_token_id": 96}, '"eos_token_id" is 96; it must be an integer from 0 to 95'),
    "eos list": ({"eos_token_id": [2, -1]}, '"eos_token_id" is -1'),
    "many eos": ({"eos_token_id": [1] * 65}, "a list of at most 64 integers"),
    "two dtypes": ({"dtype": "float16"}, '"dtype" is "float16" but "torch_dtype" is "float32"'),
    "rope text": ({"rope_scaling": "linear"}, '"rope_scaling" is "linear"; it must be an object'),
    "theta": ({"rope_theta": 1.0}, '"rope_theta" is 1'),
    "theta as text": ({"rope_theta": "1e4"}, '"rope_theta" is "1e4"'),
    "two thetas": (
        {"rope_parameters": {"rope_theta": 2e4}},
        '"rope_parameters.rope_theta" is 20000 but "rope_theta" is 10000',
    ),
    "two rope types": (
        {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2}},
        '"rope_scaling.rope_type" is "linear" but',
    ),
    "two spellings": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"type": "linear", "factor": 4.0}},
        "say different things",
    ),
    "linear without factor": ({"rope_scaling": {"type": "linear"}}, 'lacks "rope_scaling.factor"'),
    "zero factor": ({"rope_scaling": {"type": "linear", "factor": 0}}, '"rope_scaling.factor" is 0'),
    "llama3 without factors": (
        {"rope_scaling": {"type": "llama3", "factor": 8}},
        'lacks "rope_scaling.low_freq_factor"',
    ),
    "llama3 factors swapped": (
        {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
        "must be below",
    ),
    "yarn betas swapped": (
        {"rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 32}},
        "must not be below",
    ),
    "odd rotary": ({"partial_rotary_factor": 0.4}, "rotates 3 elements"),
    "rotary factor 2": ({"partial_rotary_factor": 2.0}, '"partial_rotary_factor" is 2'),
    "a draft": ({"draft_vocab_size": 10}, '"draft_vocab_size": it is a draft'),
    "a draft of speculators": ({"speculators_model_type": "eagle3"}, "it is a draft"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_value(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must hold one JSON object"),
        (b'"\xff"', "not valid JSON"),
        (b'{"hidden_size": NaN}', "not valid JSON"),
        (b'{"rms_norm_eps": 1e999}', "not valid JSON"),
        (b'{"a": 1, "a": 2}', 'the key "a" twice'),
        (b'{"a":' * 20 + b"1" + b"}" * 20, "deeper than 16"),
    ],
)
def test_broken_json(text: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _testing.parse_decoder_config(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json beside .*" + message):
        _testing.parse_decoder_config(json.dumps(target_config(TargetSpec())).encode(), text or b" ")


def test_rope_spellings_agree() -> None:
    values = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = parse(rope_theta=5e5, rope_scaling={**values, "original_max_position_embeddings": 64})
    older = {"type" if key == "rope_type" else key: value for key, value in values.items()}
    new = {**values, "rope_theta": 5e5, "original_max_position_embeddings": 64}
    assert old["rope"]["kind"] == "llama3" and old["rope"]["original_max_position_embeddings"] == 64
    assert parse(rope_theta=5e5, rope_scaling={**older, "original_max_position_embeddings": 64}) == old
    assert parse(rope_theta=..., rope_scaling=..., rope_parameters=new) == old
    assert parse(rope_theta=5e5, rope_scaling=new, rope_parameters=new) == old


def test_rope_lengths_default_as_in_transformers() -> None:
    yarn = parse(rope_scaling={"rope_type": "yarn", "factor": 4.0})["rope"]
    assert yarn["original_max_position_embeddings"] == 512 and yarn["factor"] == 4.0
    ratio = parse(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 64})["rope"]
    assert ratio["factor"] == 8.0
    outside = parse(rope_scaling={"rope_type": "yarn", "factor": 2.0}, original_max_position_embeddings=128)["rope"]
    assert outside["original_max_position_embeddings"] == 128


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_partial_rotary_factor(place: str) -> None:
    inside = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = parse(partial_rotary_factor=0.5) if place == "outside" else parse(rope_parameters=inside)
    assert config["rope"]["rotary_dim"] == 4


def test_yarn_options() -> None:
    options = {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "attention_factor": 1.25,
        "truncate": False,
    }
    rope = parse(rope_scaling=options)["rope"]
    del options["rope_type"]
    assert {key: rope[key] for key in options} == options
