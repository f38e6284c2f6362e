"""Reward functions of programs: they reward episodes, and programs neither see nor replace them."""

import pytest

from gagpo.base.errors import InvalidArgument
from tests.envs.program.programs import play, running
from tests.rejections import rejects

REWARDS = """
def reward(completions, answer, **kwargs):
    if answer == ["crash"]:
        return [1 / 0]
    if answer == ["text"]:
        return ["1.0"]
    return [float(gold in completion[-1]["content"]) for completion, gold in zip(completions, answer)]
"""


def test_a_trl_function_rewards_episodes_and_its_errors_reach_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl_rewards.py").write_text(REWARDS)
    rows = [{"id": name, "answer": name} for name in ("5", "6", "crash", "text")]
    with running(tmp_path, "chat(user('How much?'))\n", rows, reward="trl_rewards:reward") as pool:
        pool._max_restarts = 0
        ends = {name: play(pool, "It costs 5.", task=name)[-1] for name in ("5", "6", "crash", "text")}
    assert (ends["5"].reward, ends["6"].reward) == (1.0, 0.0)
    crash = "the reward function failed: trl_rewards.py, line 4, in reward: ZeroDivisionError: division by zero"
    assert ends["crash"].error.endswith(f"{crash} (row 'crash')")
    assert "(row 'text') returned str as the reward; return a number" in ends["text"].error


PAYS_ITSELF = """
import os, urllib.error
row = json.load(open(os.environ["GAGPO_TASK_FILE"]))
assert row == TASK and sorted(row) == ["id", "question", "split"], row
assert "JUDGE_KEY" not in os.environ
chat(user(row["question"]))
try:
    post("/reward", {"reward": 5.0, "success": True})
except urllib.error.HTTPError as error:
    assert error.code == 403 and b"a reward function rewards this episode" in error.read()
else:
    raise SystemExit("the post was accepted")
print(json.dumps({"reward": 5.0, "success": True}))
"""
JUDGES = """
import os

def by_name(completions, answer, **kwargs):
    return [float(gold in completion[-1]["content"]) for gold, completion in zip(answer, completions)]

def by_row(task, transcript):
    assert os.environ["JUDGE_KEY"] == "secret" and "GAGPO_REWARD_URL" not in os.environ
    return float(task["answer"] in transcript[-1]["answer"]["content"])

def infinite(completions, **kwargs):
    return [float("nan")]
"""


def judged(folder, monkeypatch, answers, source=PAYS_ITSELF, **kwargs):
    """The last events of episodes with a reward function of ``JUDGES``, one for each answer."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    (folder / "judges.py").write_text(JUDGES)
    with running(folder, source, [{"id": "a", "question": "2+3?", "answer": "5"}], **kwargs) as pool:
        pool._max_restarts = 0
        return [play(pool, answer)[-1] for answer in answers]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"reward": "judges:by_name"},
        {"reward": "judges:by_row", "hidden": ["answer"], "reward_environment": ["JUDGE_KEY"]},
    ],
)
def test_a_program_neither_rewards_itself_nor_gets_the_answer(tmp_path, monkeypatch, kwargs):
    right, wrong = judged(tmp_path, monkeypatch, ("5", "6"), **kwargs)
    assert (right.error, wrong.error) == ("", "")
    assert (right.reward, right.info["success"]) == (1.0, True)
    assert (wrong.reward, wrong.info["success"]) == (0.0, False)


def test_hidden_columns_can_be_given(tmp_path, monkeypatch):
    (end,) = judged(tmp_path, monkeypatch, ("5",), "chat(user(TASK['answer']))", reward="judges:by_name", hidden=[])
    assert end.reward == 1.0


def test_a_reward_that_is_no_number_is_the_functions_fault(tmp_path, monkeypatch):
    (end,) = judged(tmp_path, monkeypatch, ("5",), "chat(user('?'))", reward="judges:infinite")
    assert "the reward function failed: the reward function (row 'a') returned nan as the reward" in end.error


@pytest.mark.parametrize(
    ("kwargs", "key", "names"),
    [
        ({"hidden": ["anwser"], "reward": "judges:by_name"}, "hidden", ("'anwser'", "nearest: answer")),
        ({"hidden": ["answer"]}, "reward", ("reward_environment",)),
        ({"reward_environment": "A-B", "reward": "judges:by_name"}, "reward_environment", ()),
    ],
)
def test_wrong_secrets_are_named(tmp_path, monkeypatch, kwargs, key, names):
    with rejects(InvalidArgument, *names, key=key):
        judged(tmp_path, monkeypatch, (), "", **kwargs)
