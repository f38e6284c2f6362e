"""DAPO's dynamic sampling and overlong shaping, and RAGEN's filter of groups."""

import numpy as np
import pytest

from gagpo.algorithms import load
from gagpo.controllers import (
    Controllers,
    ControllerSettings,
    DynamicSampling,
    Overlong,
    VarianceFilter,
    overlong_penalty,
)
from gagpo.credit import Turns, advantages
from gagpo.settings import SettingsError, parse
from tests.rejections import rejects


def test_groups_of_equal_returns_are_dropped():
    controllers = Controllers(ControllerSettings(dynamic_sampling=DynamicSampling()))
    turns = Turns.of([0, 1, 1, 0.1, 0.1, 0.1, 5], [0, 0, 1, 2, 3, 4, 5], [3, 3, 1, 1, 7, 3])
    # Group 3: returns 1, 1, 5; group 1: 0.1, 0.1; group 7: a single episode.
    assert controllers.keep(turns).tolist() == [True, True, False, False, False, True]
    assert controllers.sampling_rounds == 10


def test_returns_that_differ_by_rounding_are_equal():
    controllers = Controllers(ControllerSettings(dynamic_sampling=DynamicSampling()))
    turns = Turns.of([0.1, 0.2, 0.3, 0.3, 0.2, 0.1], [0, 0, 0, 1, 1, 1], [0, 0])
    assert turns.return_E[0] != turns.return_E[1]
    assert not controllers.keep(turns).any()
    for preset in ("grpo", "gigpo", "agpo_adaptive", "reinforce_plus_plus_baseline"):
        credit = advantages(turns.with_columns(state_N=[0, 1, 2, 3, 4, 5]), load(preset).credit)
        assert not credit.advantage.any(), preset
        assert credit.stats["zero_advantage_groups"] == credit.stats["equal_return_groups"] == 1.0, preset


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        # Deviations of groups 3, 1, 7, 5: 0, sqrt(2)/2, sqrt(2), sqrt(2)/2.
        ({}, [7]),
        ({"share": 0.5}, [1, 7]),  # of equal ones the first
        ({"share": 0.9}, [1, 7, 5]),
        ({"share": 0.1}, [7]),  # at least one
        ({"share": 1.0}, [3, 1, 7, 5]),
        ({"by": "spread", "share": 0.5}, [7]),
        ({"by": "spread", "share": 0.6}, [1, 7]),
        ({"by": "spread", "share": 0.9}, [1, 7, 5]),
        ({"by": "spread", "share": 1.0}, [1, 7, 5]),
    ],
)
def test_the_variance_filter_keeps_the_groups_that_differ_most(options, kept):
    group_E = np.array([3, 3, 1, 1, 7, 7, 5, 5])
    turns = Turns.of([4, 4, 0, 1, 0, 2, 1, 0], range(8), group_E)
    controllers = Controllers(ControllerSettings(variance_filter=VarianceFilter(**options)))
    assert controllers.keep(turns).tolist() == np.isin(group_E, kept).tolist()
    assert controllers.sampling_rounds == 1


def test_the_filter_by_spread_drops_groups_of_equal_returns():
    turns = Turns.of([1, 1, 2, 2], range(4), [0, 0, 1, 1])
    for by, retained in (("spread", 0), ("groups", 2)):
        settings = ControllerSettings(variance_filter=VarianceFilter(by=by))
        assert Controllers(settings).keep(turns).sum() == retained


def test_overlong_penalty_by_hand():
    lengths = np.array([1, 383, 384, 448, 512, 576])
    assert overlong_penalty(lengths, 512).tolist() == [0, 0, 0, -0.5, -1, -1]
    assert overlong_penalty(np.array([1, 2]), 2).tolist() == [0, -1]  # a buffer of one token at least


@pytest.mark.parametrize("seed", range(3))
def test_the_buffer_and_factor_of_the_penalty_turn_by_turn(seed):
    """Lengths around the start of the buffer, the limit and beyond it; two limits in one batch."""
    rng = np.random.default_rng(seed)
    limit_N, buffer, factor = rng.choice([100, 40], 60), 30, 2.5
    tokens_N = rng.integers(1, 140, 60)
    shaped = Controllers(ControllerSettings(overlong=Overlong(buffer=buffer, factor=factor))).shape(
        Turns.of(np.ones(60), range(60), [0] * 60, tokens_N=tokens_N), limit_N
    )
    expected = []
    for tokens, limit in zip(tokens_N, limit_N, strict=True):
        over = tokens - (limit - buffer)
        expected.append(1.0 - factor * min(max(over / buffer, 0.0), 1.0))
    assert shaped.reward_N == pytest.approx(expected)
    assert {1.0, -1.5} <= set(shaped.reward_N.tolist())


@pytest.mark.parametrize("options", [{"buffer": 0}, {"factor": 0.0}, {"factor": -1.0}, {"limit": 9}])
def test_wrong_options_of_the_penalty_are_rejected(options):
    with pytest.raises(ValueError):
        Overlong.model_validate(options)


def test_a_buffer_beyond_the_response_limit_is_rejected():
    run = {"name": "a-run", "model": "a-model", "rollout": {"max_tokens": 64}}
    algorithm = {"preset": "dapo", "controllers": {"overlong": {"buffer": 64}}}
    item = {**run, "environment": {"id": "gagpo/Math-v0"}, "algorithm": algorithm}
    assert parse(item, "a test").algorithm.controllers.overlong.buffer == 64
    several = {**run, "algorithm": algorithm}
    several["environments"] = [{"name": n, "id": "gagpo/Math-v0", "max_tokens": m} for n, m in (("a", 64), ("b", 32))]
    with rejects(SettingsError, "32 tokens", "64", key="controllers.overlong.buffer"):
        parse(several, "a test")


def test_turns_are_penalised_for_their_own_length():
    controllers = Controllers(ControllerSettings(overlong=Overlong()))
    turns = Turns.of([0, 10, 0], [0, 0, 1], [0, 0], tokens_N=[90, 20, 40], penalty_N=[0.1, 0, 0])
    shaped = controllers.shape(turns, np.array([100, 100, 40]))
    assert shaped.reward_N == pytest.approx([-0.6, 10, -1])
    assert shaped.return_E == pytest.approx([9.3, -1])
    assert turns.return_E == pytest.approx([9.9, 0])


def test_a_constant_follows_the_response_limit_unless_it_is_set():
    assert load("dr_grpo").resolved(64).aggregation.length == 64
    assert load("dr_grpo", {"aggregation": {"length": 7}}).resolved(64).aggregation.length == 7
    assert load("grpo").resolved(64) == load("grpo")
