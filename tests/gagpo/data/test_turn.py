"""Turns of an episode."""

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from gagpo.data import INVALID_REASONS, Call, Invalid, Turn


def test_a_turn_does_not_change():
    turn = Turn.of("go left", "left")
    with pytest.raises(FrozenInstanceError):
        turn.reward = 1.0
    assert turn.with_observation("A hall.", "hall").with_result(1.0, accepted=True).reward == 1.0
    assert (turn.reward, turn.observation) == (0.0, "")


def test_every_reason_has_a_sentence():
    assert {"", *INVALID_REASONS} == set(get_args(Invalid))


def test_the_pool_gets_a_completion_a_first_call_or_the_action():
    assert Turn.of("x", "left").sent_action == "left"
    assert Turn.of_calls("x", [Call("take"), Call("put")]).sent_action == "take"
    assert Turn.rejection('{"rejected": "too long"}').sent_action == '{"rejected": "too long"}'


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (Turn.of("go", "go"), "refused"),
        (Turn.of("go", "go", cut=True), "cut off"),
        (Turn.of("hm", None), "not parsed"),
        (Turn.of("hm", None, cut=True), "cut off"),
    ],
)
def test_a_turn_that_is_not_accepted_has_a_reason(turn, reason):
    assert turn.with_result(0.5, accepted=False).invalid == reason
    assert turn.with_result(0.5, accepted=True).valid == (turn.action == "go")


def test_calls_are_answered_in_order():
    turn = Turn.of_calls("x", [Call("take"), Call("", error="no such tool")])
    assert turn.invalid == "not parsed" and turn.pending_action == "take" and turn.answers == ""
    turn = turn.with_answer("Taken.")
    assert turn.pending_action == ""
    turn = turn.with_answer("A hall.")
    assert turn.pending_action is None and turn.answers == "Taken.\nno such tool\nA hall."
