"""Reward functions: what they are called with and what their errors say."""

import functools
import json
from typing import ClassVar

import numpy as np
import pytest
import torch

from gagpo.envs.gateway.conversations import Conversations
from gagpo.envs.gateway.messages import ChatRequest, Completion
from gagpo.envs.rewards.calls import RewardError, call_reward, secret_columns
from gagpo.envs.rewards.transcripts import last_answer, last_call, prompt_and_completion

ROW = {"id": "a", "split": "train", "question": "What does the lamp cost?", "answer": "5"}
FUNCTION = {"name": "price", "arguments": {"item": "lamp"}}
CALL = {"id": "call00000", "type": "function", "function": FUNCTION}
BRIEF = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What does the lamp cost?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "5", "tool_call_id": "call00000"}
SAID = {"role": "assistant", "content": "It costs 5."}


def transcript_of(*requests):
    """The transcript of an episode. requests: messages and answer of each."""
    conversations = Conversations(token_ids=True)
    for messages, answer in requests:
        conversations.add_request(ChatRequest.of({"messages": messages}))
        conversations.add_answer(answer)
    return conversations.transcript


@pytest.fixture
def transcript():
    first = [BRIEF, QUESTION]
    final = Completion("<think>5, then</think>It costs 5.\n", ids=[3, 4])
    return transcript_of((first, Completion("", [CALL], ids=[1, 2])), ([*first, CALLED, RESULT], final))


def test_helpers_read_the_last_answer_and_the_last_call(transcript):
    assert last_answer(transcript) == "It costs 5." and last_answer(transcript[:1]) == "" == last_answer([])
    assert last_call(transcript, "price") == {"item": "lamp"} and last_call(transcript, "final_answer") is None


def test_the_messages_after_the_first_request_are_the_completion(transcript):
    prompt, completion = prompt_and_completion(transcript)
    assert prompt == [BRIEF, QUESTION]
    assert completion == [CALLED, RESULT, {"role": "assistant", "content": "<think>5, then</think>It costs 5.\n"}]


def test_a_rewritten_history_and_another_conversation_have_a_completion_too():
    text = {"role": "assistant", "content": "Calling price"}
    observed = {"role": "user", "content": "Observation: 5"}
    example = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    first = [*example, QUESTION]
    rewritten = transcript_of((first, Completion("", [CALL])), ([*first, text, observed], Completion("5")))
    assert prompt_and_completion(rewritten) == (first, [text, observed, {"role": "assistant", "content": "5"}])
    other = transcript_of((first, Completion("5")), ([BRIEF, observed, text, observed], Completion("6")))
    assert prompt_and_completion(other) == ([BRIEF, observed], [text, observed, {"role": "assistant", "content": "6"}])
    shortened = transcript_of((first, Completion("5")), ([QUESTION, text, observed], Completion("6")))
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
        (lambda transcript, task: float(task["answer"] == "5" and len(transcript) == 2), 1.0),
        (lambda task: float(task["id"] == "a"), 1.0),
        (lambda answer, transcript: float(answer == "5" and len(transcript) == 2), 1.0),
        (lambda prompt, answer: float(answer == "5" and prompt == [BRIEF, QUESTION]), 1.0),
        (lambda answer, prompt, /: float(answer == "5" and prompt == [BRIEF, QUESTION]), 1.0),
        (lambda question, answer="6": float(answer == "5" and question == ROW["question"]), 1.0),
        (lambda prompts, answer: [float(answer == ["5"] and prompts == [[BRIEF, QUESTION]])], 1.0),
        (lambda **kwargs: [float(kwargs["answer"] == ["5"] and len(kwargs["completions"]) == 1)], 1.0),
        (lambda completions, **kwargs: [None], 0.0),
        (lambda completion_ids: [float(completion_ids == [[1, 2, 3, 4]])], 1.0),
        (lambda completion, answer, task, info: float((answer, task, info) == ("5", "default", {})), 1.0),
        (lambda state: float(state["answer"] == "5" and len(state["trajectory"]) == 2), 1.0),
        (lambda state: state["trajectory"][-1]["completion"][0]["content"].count("costs 5."), 1),
        (lambda parser, completion, answer: float(answer in parser.parse_answer(completion)), 1.0),
        (lambda solution_str, ground_truth: {"score": float(ground_truth in solution_str), "acc": 1}, {"reward": 1.0}),
        (lambda data_sources, solution_strs, ground_truths, extra_infos: [float(ground_truths == ["5"])], 1.0),
    ],
)
def test_functions_are_called_by_the_names_of_their_parameters(transcript, function, expected):
    assert call_reward(function, ROW, transcript) == expected


def test_a_text_prompt_makes_texts(transcript):
    row = {**ROW, "prompt": "What does the lamp cost?"}
    text = "<think>5, then</think>It costs 5.\n"

    def reward(prompts, completions, **kwargs):
        assert "prompt" not in kwargs
        return [float(prompts == [row["prompt"]] and completions == [text])]

    assert call_reward(reward, row, transcript) == 1.0
    assert call_reward(
        lambda prompt, completion: float(completion == text and prompt == row["prompt"]), row, transcript
    )


def test_functions_of_other_packages_are_called_unchanged(transcript):
    """The real functions of TRL, and functions with the signatures that verl 0.9.1 and verifiers 0.1 call by name."""
    from trl.rewards import get_soft_overlong_punishment, think_format_reward

    assert call_reward(think_format_reward, ROW, transcript) == 0.0  # no thought begins the first answer
    assert call_reward(get_soft_overlong_punishment(10, 2), ROW, transcript) == 0  # of the token ids

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return float((data_source, ground_truth, extra_info) == ("gsm8k", "5", {"index": 3}) and "5." in solution_str)

    row = {"id": "a", "data_source": "gsm8k", "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 3}}
    assert call_reward(compute_score, row, transcript) == 1.0

    async def correct(prompt, completion, answer, state, task, info, parser):
        assert state["prompt"] == prompt and state["info"] == info == {"level": 1} and task == "shop"
        return float(parser.parse_answer(completion).endswith(f"{answer}.\n"))

    assert call_reward(correct, {**ROW, "task": "shop", "info": {"level": 1}}, transcript) == 1.0


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (trl_reward, ["answer"]),
        (verifiers_reward, ["answer", "weight"]),
        (own_reward, ["weight"]),
        (lambda solution_str, ground_truth, extra_info: 0.0, ["reward_model", "ground_truth", "answer", "extra_info"]),
        (lambda prompts, completions, completion_ids, trainer_state, id: [0.0], []),
    ],
)
def test_the_columns_that_a_function_names_are_secret(function, columns):
    assert secret_columns(function) == columns


def misspelled(completions, **kwargs):
    answers = json.loads('{"gold": 5}')
    return [answers["answer"]]


def deep(task, transcript):
    return json.loads(last_answer(transcript))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (misspelled, r"test_calls.py, line 1\d\d, in misspelled: KeyError: 'answer' \(row 'a'\)"),
        (deep, r"test_calls.py, line 1\d\d, in deep: JSONDecodeError: Expecting value.* \(row 'a'\)"),
        (functools.partial(deep), r"test_calls.py, line 1\d\d, in deep"),
        (
            lambda row, transcript: 1.0,
            r"\(row 'a'\) needs 'row'; name columns \(id, .*, answer\) and .*: task, transcript;",
        ),
        (
            lambda completions, gold: 1.0,
            r"\(row 'a'\) needs 'gold'; name columns .*; prompts, completions, completion_ids;",
        ),
        (lambda completions, transcript: 1.0, "needs 'transcript'"),
        (lambda completion, completion_ids: 1.0, "needs 'completion'"),
        (lambda completion, gold: 1.0, "needs 'gold'.*; prompt, completion, state, info, task, parser;"),
        (lambda solution_str, gold: 1.0, "needs 'gold'.*; data_source, solution_str, ground_truth, extra_info$"),
        (lambda completions: [1.0, 0.0], r"the reward function \(row 'a'\) returned 2 rewards; return a list with one"),
        (lambda completions: [], "returned 0 rewards"),
        (lambda completion: None, "returned None; return a number"),
        (lambda task, transcript: None, r"the reward function \(row 'a'\) returned None; return a number"),
    ],
)
def test_errors_name_the_file_the_line_and_the_row(transcript, function, said):
    with pytest.raises(RewardError, match=said):
        call_reward(function, ROW, transcript)
