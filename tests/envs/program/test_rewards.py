"""Reward functions: what they are called with, what they may return, and what their errors say."""

import functools
import json
from typing import ClassVar

import numpy as np
import pytest
import torch

from gagpo.envs.program import last_answer, last_call
from gagpo.envs.program.conversations import Conversations
from gagpo.envs.program.messages import ChatRequest, Completion
from gagpo.envs.program.rewards import RewardError, call_reward
from gagpo.envs.program.transcripts import prompt_and_completion
from tests.envs.program.programs import play, running

ROW = {"id": "a", "split": "train", "question": "What does the lamp cost?", "answer": "5", "prompt": "dropped"}
FUNCTION = {"name": "price", "arguments": {"item": "lamp"}}
CALL = {"id": "call00000", "type": "function", "function": FUNCTION}
BRIEF = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What does the lamp cost?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "5", "tool_call_id": "call00000"}
SAID = {"role": "assistant", "content": "It costs 5."}


def transcript_of(*requests):
    """The transcript of an episode. requests: messages and answer of each."""
    conversations = Conversations()
    for messages, answer in requests:
        conversations.add_request(ChatRequest.of({"messages": messages}))
        conversations.add_answer(answer)
    return conversations.transcript


@pytest.fixture
def transcript():
    first = [BRIEF, QUESTION]
    return transcript_of(
        (first, Completion("", [CALL])), ([*first, CALLED, RESULT], Completion("<think>5, then</think>It costs 5.\n"))
    )


def test_helpers_read_the_last_answer_and_the_last_call(transcript):
    assert last_answer(transcript) == "It costs 5." and last_answer(transcript[:1]) == "" == last_answer([])
    assert last_call(transcript, "price") == {"item": "lamp"} and last_call(transcript, "final_answer") is None


def test_the_messages_after_the_first_request_are_the_completion(transcript):
    prompt, completion = prompt_and_completion(transcript)
    assert prompt == [BRIEF, QUESTION]
    assert completion == [CALLED, RESULT, {"role": "assistant", "content": "<think>5, then</think>It costs 5.\n"}]


def test_a_rewritten_history_and_another_conversation_have_a_completion_too():
    text = {"role": "assistant", "content": "Calling price"}
    seen = {"role": "user", "content": "Observation: 5"}
    example = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    first = [*example, QUESTION]
    rewritten = transcript_of((first, Completion("", [CALL])), ([*first, text, seen], Completion("5")))
    assert prompt_and_completion(rewritten) == (first, [text, seen, {"role": "assistant", "content": "5"}])
    other = transcript_of((first, Completion("5")), ([BRIEF, seen, text, seen], Completion("6")))
    assert prompt_and_completion(other) == ([BRIEF, seen], [text, seen, {"role": "assistant", "content": "6"}])
    shortened = transcript_of((first, Completion("5")), ([QUESTION, text, seen], Completion("6")))
    assert "turn" not in str(prompt_and_completion(shortened))


def trl_reward(completions, answer, **kwargs):
    """As in TRL's documentation: lists of messages, columns of the data set, a list of rewards."""
    assert kwargs["question"] == ["What does the lamp cost?"] and "prompt" not in kwargs
    assert kwargs["prompts"] == [[BRIEF, QUESTION]] and kwargs["trainer_state"] is None
    kwargs["log_metric"]("length", 3)
    return [float(gold in completion[-1]["content"]) for completion, gold in zip(completions, answer, strict=True)]


def verifiers_reward(completion, answer, state, weight=1.0):
    assert state["prompt"] == [BRIEF, QUESTION] and state["answer"] == answer == "5"
    return weight * (answer in completion[-1]["content"])


async def awaited_reward(completions, **kwargs):
    return [1.0 for _ in completions]


def own_reward(task, transcript, weight=1.0):
    return {"reward": weight * (task["answer"] in last_answer(transcript)), "success": True}


class Callable:
    calls: ClassVar[list] = []

    def __call__(self, task, transcript):
        self.calls.append(task["id"])
        return 1.0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (trl_reward, 1.0),
        (verifiers_reward, 1.0),
        (awaited_reward, 1.0),
        (own_reward, {"reward": 1.0, "success": True}),
        (functools.partial(own_reward, weight=0.5), {"reward": 0.5, "success": True}),
        (functools.partial(verifiers_reward, weight=0.5), 0.5),
        (Callable(), 1.0),
        (lambda completions: np.ones(1), 1.0),
        (lambda completions: torch.ones(1), 1.0),
        (lambda completions: (1.0,), 1.0),
        (lambda completions: np.float32(1), 1.0),
        (lambda completions: [{"reward": 1.0, "success": False}], {"reward": 1.0, "success": False}),
        (lambda *arguments: float(arguments[0]["id"] == "a"), 1.0),
    ],
)
def test_functions_of_three_forms_are_called_as_they_are(transcript, function, expected):
    assert call_reward(function, ROW, transcript) == expected


def misspelled(completions, **kwargs):
    answers = json.loads('{"gold": 5}')
    return [answers["answer"]]


def deep(task, transcript):
    return json.loads(last_answer(transcript))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (misspelled, r"test_rewards.py, line 1\d\d, in misspelled: KeyError: 'answer' \(row 'a'\)"),
        (deep, r"test_rewards.py, line 1\d\d, in deep: JSONDecodeError: Expecting value.* \(row 'a'\)"),
        (functools.partial(deep), r"test_rewards.py, line 1\d\d, in deep"),
        (lambda task: 1.0, r"TypeError: .*<lambda>\(\) takes 1 positional argument but 2 were given \(row 'a'\)"),
        (lambda completions, gold: 1.0, r"\(row 'a'\) needs 'gold'; choose from answer, completions, id, "),
        (lambda completion, completion_ids: 1.0, "needs 'completion_ids'; choose from answer, completion, id, "),
        (lambda completions: [1.0, 0.0], r"the reward function \(row 'a'\) returned 2 rewards; return a list with one"),
        (lambda completions: [], "returned 0 rewards"),
        (lambda completions: [None], "returned None; return a number"),
        (lambda task, transcript: None, r"the reward function \(row 'a'\) returned None; return a number"),
    ],
)
def test_errors_name_the_file_the_line_and_the_row(transcript, function, said):
    with pytest.raises(RewardError, match=said):
        call_reward(function, ROW, transcript)


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
