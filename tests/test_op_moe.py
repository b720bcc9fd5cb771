"""The router of a mixture of experts: worked examples, and transformers' own routers on random logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eagle31rt import _testing

INF, NAN = float("inf"), float("nan")


def places(device: str) -> list[str]:
    return ["cuda"] if device == "cuda" else ["reference", *_testing.available_instruction_sets()]


def route(place: str, logits: Any, top_k: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    ids, weights = _testing.moe_route(place, np.asarray(logits, np.float32), top_k, **options)
    return np.asarray(ids), np.asarray(weights)


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def test_softmax_weights_are_of_all_experts_or_of_the_chosen(device: str) -> None:
    logits = [np.log([0.4, 0.1, 0.2, 0.3])]
    for place in places(device):
        ids, weights = route(place, logits, 2)
        assert ids.tolist() == [[0, 3]]
        np.testing.assert_allclose(weights, [[0.4, 0.3]], rtol=1e-6)
        ids, weights = route(place, logits, 2, normalise=True, scale=2.0)
        assert ids.tolist() == [[0, 3]]
        np.testing.assert_allclose(weights, [[8 / 7, 6 / 7]], rtol=1e-6)


def test_equal_logits_go_to_the_lowest_ids(device: str) -> None:
    for place in places(device):
        ids, weights = route(place, [[1, 5, 5, 1, 5, 5], [0.0, -0.0, 0.0, -0.0, 0.0, 0.0]], 3, normalise=True)
        assert ids.tolist() == [[1, 2, 4], [0, 1, 2]]
        np.testing.assert_allclose(weights, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_a_broken_row_still_names_experts(device: str) -> None:
    rows = [[NAN] * 5, [-INF] * 5, [NAN, 3.0, -INF, 2.0, NAN], [INF, 1.0, INF, 0.0, 1.0]]
    for place in places(device):
        ids, _ = route(place, rows, 3)
        assert ids.tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 1, 2]]


def test_a_correction_chooses_but_does_not_weigh(device: str) -> None:
    logits = [[logit(p) for p in (0.5, 0.6, 0.7, 0.2)]]
    correction = np.array([0.0, 0.0, -0.5, 0.5], np.float32)  # ranks 0.5, 0.6, 0.2, 0.7
    for place in places(device):
        ids, weights = route(place, logits, 2, sigmoid=True, correction=correction)
        assert ids.tolist() == [[1, 3]]
        np.testing.assert_allclose(weights, [[0.6, 0.2]], rtol=1e-6)
        _, weights = route(place, logits, 2, sigmoid=True, normalise=True, scale=2.5, correction=correction)
        np.testing.assert_allclose(weights, [[2.5 * 0.75, 2.5 * 0.25]], rtol=1e-6)


def test_groups_are_worth_their_two_best(device: str) -> None:
    # The best expert (0.9) is in the group with the lowest sum of two, so it is out.
    probabilities = [0.9, 0.1, 0.05, 0.6, 0.5, 0.4, 0.7, 0.55, 0.01]
    logits = [[logit(p) for p in probabilities]]
    for place in places(device):
        ids, weights = route(place, logits, 3, sigmoid=True, num_groups=3, num_groups_chosen=2)
        assert ids.tolist() == [[3, 6, 7]]
        np.testing.assert_allclose(weights, [[0.6, 0.7, 0.55]], rtol=1e-6)


@pytest.mark.dev
@pytest.mark.parametrize(("num_experts", "groups"), [(32, (4, 2)), (48, (1, 1))])
def test_deepseek_routing_is_that_of_transformers(num_experts: int, groups: tuple[int, int], device: str) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = modeling.DeepseekV3Config(
        hidden_size=num_experts,
        n_routed_experts=num_experts,
        num_experts_per_tok=6,
        n_group=groups[0],
        topk_group=groups[1],
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    router = modeling.DeepseekV3TopkRouter(config)
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (50, num_experts)).astype(np.float32)
    correction = rng.uniform(-0.2, 0.2, num_experts).astype(np.float32)
    with torch.no_grad():
        router.weight.copy_(torch.eye(num_experts))  # so that hidden states are logits
        router.e_score_correction_bias.copy_(torch.from_numpy(correction))
        _, weights, ids = router(torch.from_numpy(logits))
    order = np.argsort(ids.numpy(), axis=1)
    for place in places(device):
        found_ids, found_weights = route(
            place,
            logits,
            6,
            sigmoid=True,
            normalise=True,
            scale=2.5,
            correction=correction,
            num_groups=groups[0],
            num_groups_chosen=groups[1],
        )
        np.testing.assert_array_equal(found_ids, np.take_along_axis(ids.numpy(), order, 1))
        np.testing.assert_allclose(found_weights, np.take_along_axis(weights.numpy(), order, 1), rtol=2e-6)
