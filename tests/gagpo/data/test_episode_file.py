"""The format of episode files."""

import json

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, Turn, TurnCredit, credits_from_record, episode_from_record, episode_record
from tests.rejections import rejects

IDS = {"prompt_ids": np.array([1, 2], np.int32), "response_ids": np.array([3, 4], np.int32)}
EPISODE = Episode("t", turns=[Turn("o", "a", "a", 1.0, logprobs=np.zeros(2, np.float32), **IDS), Turn("p", "b", "b")])
RATIOS, WEIGHTS = np.array([0.5, 1.5], np.float32), np.array([0.0, 1.0], np.float32)
CREDITS = [TurnCredit(True, 0.25, -1.5, 7, RATIOS, WEIGHTS), TurnCredit(True, -0.25, None, 2)]


def spelled(ids):
    return "".join(f"<{token}>" for token in ids)


def test_credit_stands_in_the_record_and_comes_back():
    record = json.loads(json.dumps(episode_record(EPISODE, tokens=True, decode=spelled, credits=CREDITS)))
    assert record["kept"] is True and record["turns"][0]["tokens"]["ratio"] == [0.5, 1.5]
    assert "value" not in record["turns"][1]
    again, credits = episode_from_record(record), credits_from_record(record)
    assert episode_record(again, tokens=True, decode=spelled, credits=credits) == record
    assert [credit.trained_on for credit in credits] == [True, True]
    assert credits[0].ratios.tolist() == [0.5, 1.5] and not len(credits[1].ratios)


def test_what_a_turn_changed_comes_back():
    turn = Turn("o", "a", "a").with_result(0.0, True, "new x\n+1").with_result(1.0, True, "new y")
    record = episode_record(Episode("t", turns=[turn, Turn("p", "b", "b")]))
    assert [turn.get("diff") for turn in record["turns"]] == ["new x\n+1\nnew y", None]
    assert [turn.diff for turn in episode_from_record(record).turns] == ["new x\n+1\nnew y", ""]
    record["turns"][1]["diff"] = ["x"]
    with rejects(InvalidArgument, key="diff", where="turn 1"):
        episode_from_record(record)


def test_a_screenshot_comes_back():
    turns = [Turn("o", "a", "a", screenshot="iVBORw0KGgo="), Turn("p", "b", "b")]
    record = episode_record(Episode("t", turns=turns))
    assert [turn.get("screenshot") for turn in record["turns"]] == ["iVBORw0KGgo=", None]
    assert [turn.screenshot for turn in episode_from_record(record).turns] == ["iVBORw0KGgo=", ""]
    record["turns"][1]["screenshot"] = 3
    with rejects(InvalidArgument, key="screenshot", where="turn 1"):
        episode_from_record(record)


def test_an_evaluations_record_has_no_credit():
    assert credits_from_record(episode_record(EPISODE)) is None
    thrown = episode_record(EPISODE, credits=[TurnCredit()] * 2)
    assert thrown["kept"] is False and not any(credit.trained_on for credit in credits_from_record(thrown))


def test_a_wrong_credit_is_named():
    record = episode_record(EPISODE, credits=CREDITS)
    record["turns"][0]["advantage"] = "much"
    with rejects(InvalidArgument, "got 'much'", key="advantage"):
        credits_from_record(record)


def test_the_keys_and_their_order_are_those_of_stored_runs():
    record = episode_record(EPISODE, decode=spelled, credits=CREDITS)
    assert list(record) == (
        [
            "task",
            "task_type",
            "split",
            "group",
            "sample",
            "seed",
            "temperature",
            "success",
            "outcome",
            "reward",
            "restarts",
            "kept",
            "info",
            "turns",
        ]
    )
    keys = [
        "observation",
        "response",
        "action",
        "reward",
        "valid",
        "state",
        "sent",
        "advantage",
        "value",
        "group_state",
        "tokens",
    ]
    assert list(record["turns"][0]) == keys
    assert list(record["turns"][0]["tokens"]) == ["prompt", "text", "logprob", "ratio", "gate_weight"]
