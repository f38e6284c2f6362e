"""What a function returns becomes the reward, or a fault that says what to return."""

import enum
import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from gagpo.envs.pool.wire import Garbage
from gagpo.envs.rewards.functions import report as as_report


class Grade(enum.IntEnum):
    GOOD = 1


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, True, Grade.GOOD, Fraction(1), Decimal(1)),
        *(np.float32(1), np.float16(1), np.int64(1), np.uint8(1), np.bool_(True), np.array(1.0), np.array(True)),
        *(torch.tensor(1.0), torch.tensor(1), torch.tensor(1.0, requires_grad=True), torch.tensor(True)),
    ],
    ids=repr,
)
def test_numbers_of_every_kind_are_rewards(value):
    expected = '{"reward": 1.0}'
    assert as_report(value, "the agent") == as_report({"reward": value, "log": object()}, "the agent") == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "returned str as the reward; return a number"),
        (b"1", "returned bytes"),
        ((1.0, True), "returned tuple"),
        (1j, "returned complex"),
        (np.array([1.0]), r"an array of shape \(1,\)"),
        (torch.zeros(2), "an array of shape"),
        (np.str_("1"), "returned str"),
        (np.datetime64("2020-01-01"), "returned date as"),
        ({"reward": None}, "returned NoneType"),
        ({"reward": 1, "success": 1}, "returned 1 as success; return True or False"),
        ({"reward": 1, "success": "yes"}, "returned 'yes' as success"),
    ],
    ids=repr,
)
def test_anything_else_is_a_fault_that_says_what_to_return(value, said):
    with pytest.raises(Garbage, match=said):
        as_report(value, "the agent")


@pytest.mark.parametrize("number", [10**400, 2e9, float("inf"), float("nan"), np.float32("nan")])
def test_a_number_that_is_too_large_or_none_is_refused_with_its_author(number):
    with pytest.raises(Garbage, match=r"the agent returned .* as the reward; return a number from"):
        as_report(number, "the agent")


def test_success_may_be_of_numpy_and_may_be_missing():
    report = {"reward": np.float32(0.5), "success": np.bool_(False), "trace": np.zeros(3)}
    assert json.loads(as_report(report, "the agent")) == {"reward": 0.5, "success": False}
    assert json.loads(as_report({"reward": 1, "success": None}, "the agent")) == {"reward": 1.0}
    assert json.loads(as_report({"success": True}, "the agent")) == {"success": True}
