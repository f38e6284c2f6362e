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
from gagpo.credit import Turns


def test_groups_of_equal_returns_are_dropped():
    controllers = Controllers(ControllerSettings(dynamic_sampling=DynamicSampling()))
    turns = Turns([0, 1, 1, 0.1, 0.1, 0.1, 5], [0, 0, 1, 2, 3, 4, 5], [3, 3, 1, 1, 7, 3])
    # Group 3: returns 1, 1, 5; group 1: 0.1, 0.1; group 7: a single episode.
    assert controllers.keep(turns).tolist() == [True, True, False, False, False, True]
    assert controllers.sampling_rounds == 10


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
    turns = Turns([4, 4, 0, 1, 0, 2, 1, 0], range(8), group_E)
    controllers = Controllers(ControllerSettings(variance_filter=VarianceFilter(**options)))
    assert controllers.keep(turns).tolist() == np.isin(group_E, kept).tolist()
    assert controllers.sampling_rounds == 1


def test_the_filter_by_spread_drops_groups_of_equal_returns():
    turns = Turns([1, 1, 2, 2], range(4), [0, 0, 1, 1])
    for by, kept in (("spread", 0), ("groups", 2)):
        settings = ControllerSettings(variance_filter=VarianceFilter(by=by))
        assert Controllers(settings).keep(turns).sum() == kept


def test_overlong_penalty_by_hand():
    lengths = np.array([1, 383, 384, 448, 512, 576])
    assert overlong_penalty(lengths, 512).tolist() == [0, 0, 0, -0.5, -1, -1]
    assert overlong_penalty(np.array([1, 2]), 2).tolist() == [0, -1]  # a buffer of one token at least


def test_turns_are_penalised_for_their_own_length():
    controllers = Controllers(ControllerSettings(overlong=Overlong()))
    turns = Turns([0, 10, 0], [0, 0, 1], [0, 0], tokens_N=[90, 20, 40], penalty_N=[0.1, 0, 0])
    shaped = controllers.shape(turns, np.array([100, 100, 40]))
    assert shaped.reward_N == pytest.approx([-0.6, 10, -1])
    assert shaped.return_E == pytest.approx([9.3, -1])
    assert turns.return_E == pytest.approx([9.9, 0])


def test_a_constant_follows_the_response_limit_unless_it_is_set():
    assert load("dr_grpo").resolved(64).aggregation.length == 64
    assert load("dr_grpo", {"aggregation": {"length": 7}}).resolved(64).aggregation.length == 7
    assert load("grpo").resolved(64) == load("grpo")
