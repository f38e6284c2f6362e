"""Episode files contain the numbers that the update was computed from."""

from dataclasses import replace

import numpy as np
import pytest

from gagpo.credit import advantages, turns_for
from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.reinforce import ReinforcePlusPlus
from gagpo.data import MOST_SENT, Episode, Turn, episode_record, read_episodes
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.annotations import annotate
from gagpo.training.trainer import train


def group():
    """Two tries that part in the second turn, and one that was played and thrown away."""
    ids = np.arange(2, dtype=np.int32)
    tries = [
        Episode("t", group=0, sample=i, success=i == 0, turns=[Turn(o, "x", o, response_ids=ids) for o in path])
        for i, path in enumerate([("start", "left", "end"), ("start", "right", "end")])
    ]
    tries[0].turns[-1] = replace(tries[0].turns[-1], reward=10.0)
    return tries, Episode("u", group=1, turns=[Turn("start", "x", "a", response_ids=ids)])


@pytest.mark.parametrize("settings", [Gagpo(gamma=0.9), Grpo(), ReinforcePlusPlus()])
def test_turns_carry_the_credit_they_were_given(settings):
    trained, thrown = group()
    turns = turns_for(trained, settings)
    credit = advantages(turns, settings)
    columns = {"ratio_K": np.linspace(0.5, 1.5, 12), "gate_weight_K": np.linspace(0, 1.1, 12)}
    *credits, thrown_credits = annotate([*trained, thrown], trained, turns, credit, settings, **columns)
    written = [turn_credit for turn_credits in credits for turn_credit in turn_credits]
    assert [turn.advantage for turn in written] == credit.advantage_N.tolist()
    gamma = getattr(settings, "gamma", 1.0)
    assert [turn.value for turn in written] == Gagpo(gamma=gamma).value(turns).tolist()
    assert written[0].group_state == written[3].group_state != written[1].group_state
    assert np.concatenate([turn.ratios for turn in written]) == pytest.approx(np.linspace(0.5, 1.5, 12))
    assert np.concatenate([turn.gate_weights for turn in written]) == pytest.approx(columns["gate_weight_K"])
    record, thrown_record = (
        episode_record(*pair, credits=results)
        for *pair, results in ((trained[0], credits[0]), (thrown, thrown_credits))
    )
    assert record["kept"] is True and record["turns"][0]["advantage"] == written[0].advantage
    assert "advantage" not in thrown_record["turns"][0] and thrown_record["kept"] is False
    assert "kept" not in episode_record(thrown)
    assert len(written[0].advantages) == (2 if settings.level == "token" else 0)


@pytest.mark.parametrize("options", [{"proxy": "outcome"}, {"leave_one_out": True}, {"proxy": "graph"}])
def test_turns_carry_the_value_that_the_credit_used(options):
    trained, _ = group()
    settings = Gagpo(**options)
    turns = turns_for(trained, settings)
    credits = annotate(trained, trained, turns, advantages(turns, settings), settings)
    assert [turn.value for turn_credits in credits for turn in turn_credits] == settings.value(turns).tolist()


def test_a_critics_value_is_that_of_the_first_token():
    trained, _ = group()
    turns = turns_for(trained, Gagpo())
    credit = replace(advantages(turns, Gagpo()), value_K=np.arange(12.0))
    credits = annotate(trained, trained, turns, credit, Gagpo())
    assert [turn.value for turn_credits in credits for turn in turn_credits] == [0, 2, 4, 6, 8, 10]


def spelled(ids):
    return "".join(f"<{item}>" for item in ids)


def test_a_record_says_what_was_read_and_token_by_token_what_was_answered():
    first = Turn("o", "ab", "ab", prompt_ids=np.array([1, 2]), response_ids=np.array([3, 4]), logprobs=np.zeros(2))
    second = Turn("p", "c", "c", prompt_ids=np.array([1, 2, 3, 4, 5]), response_ids=np.array([6]))
    window = Turn("q", "d", "d", prompt_ids=np.array([9, 2]), response_ids=np.array([6]))
    turns = episode_record(Episode("t", turns=[first, second, window]), decode=spelled)["turns"]
    assert [turn["sent"] for turn in turns] == ["<1><2>", "<5>", "<9><2>"]
    assert turns[0]["tokens"] == {"prompt": 2, "text": ["<3>", "<4>"], "logprob": [0.0, 0.0]}
    assert "logprob" not in turns[1]["tokens"]


def test_the_first_prompt_is_written_whole_and_a_long_later_one_says_that_it_is_cut():
    ids = np.arange(MOST_SENT + 5)
    turns = [Turn("o", "a", "a", prompt_ids=ids), Turn("p", "b", "b", prompt_ids=ids[::-1].copy())]
    episode = Episode("t", turns=turns)
    episode.note_sent(spelled)
    turns = episode.turns
    assert turns[0].sent == spelled(ids)
    assert turns[1].sent == "… " + spelled(range(MOST_SENT - 1, -1, -1))
    assert [turn["sent"] for turn in episode_record(episode)["turns"]] == [turn.sent for turn in turns]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("sapo", lambda r: 1 / np.cosh((r - 1) / 2) ** 2),
        ({"name": "clip", "low": 0.05, "high": 0.05}, lambda r: np.where(r > 1.05, 0.0, 1.0)),
    ],
)
def test_tokens_carry_the_weight_that_the_gate_left_them(tmp_path, corridor, gate, expected):
    algorithm = {"preset": "grpo", "kl": {"coefficient": 0.0}, "gate": gate}
    folder = RunFolder.create(tmp_path / "run", load(corridor(algorithm=algorithm, training={"epochs": 2})))
    train(folder, quiet=True)
    turns = [
        turn for record in read_episodes(folder.path / "episodes" / "train-0001.jsonl") for turn in record["turns"]
    ]
    rewarded = [turn["tokens"] for turn in turns if turn["advantage"] > 0]
    ratio = np.concatenate([tokens["ratio"] for tokens in rewarded])
    weight = np.concatenate([tokens["gate_weight"] for tokens in rewarded])
    assert np.ptp(ratio) > 0.05 and np.ptp(weight) > 0
    assert weight == pytest.approx(expected(ratio), abs=2e-4)  # both are rounded to four digits


def test_a_run_keeps_advantages_values_states_and_tokens(tmp_path, corridor):
    folder = RunFolder.create(tmp_path / "run", load(corridor()))
    train(folder, quiet=True)
    records = list(read_episodes(folder.path / "episodes" / "train-0001.jsonl"))
    assert {record["kept"] for record in records} == {True}
    for turn in (turn for record in records for turn in record["turns"]):
        assert {"advantage", "value", "group_state"} <= set(turn)
        tokens = turn["tokens"]
        assert len(tokens["text"]) == len(tokens["logprob"]) == len(tokens["ratio"]) > 0
        assert len(tokens["gate_weight"]) == len(tokens["ratio"])
        assert turn["observation"] in turn["sent"]
    first = {}
    for record in records:  # equal observations of a task are one state, and have one value
        for turn in record["turns"]:
            key = (record["group"], turn["observation"])
            assert first.setdefault(key, turn["group_state"]) == turn["group_state"]
    before = next(read_episodes(folder.path / "episodes" / "before-test.jsonl"))
    assert "kept" not in before and "advantage" not in before["turns"][0]
    assert all(turn["observation"] in turn["sent"] for turn in before["turns"])
    assert "<|" in before["turns"][0]["sent"], "the special tokens of the template are visible"
