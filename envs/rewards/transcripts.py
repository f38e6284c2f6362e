"""Read the transcript of a program's episode, in a reward function.

A transcript is a list with one entry for each answered request, in order:

    [{"extends": None,
      "messages": [{"role": "user", "content": "What does the lamp cost?"}],
      "answer": {"role": "assistant", "content": "", "tool_calls": [
          {"id": "call00000", "type": "function", "function": {"name": "price", "arguments": {"item": "lamp"}}}]}},
     {"extends": 0,
      "messages": [{"role": "tool", "content": "5", "tool_call_id": "call00000"}],
      "answer": {"role": "assistant", "content": "It costs 5."}}]

``messages`` are those after the conversation of the entry that it ``extends``; with None, a new conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gagpo.base.thoughts import without_thoughts

Json = dict[str, Any]  # a JSON object


def last_answer(transcript: Sequence[Json]) -> str:
    """The text of the last answer, without thoughts and the space around it; '' if it consists of tool calls.

    >>> last_answer([{"extends": None, "messages": [], "answer": {"content": "<think>2 + 3</think> 5"}}])
    '5'
    """
    return without_thoughts(transcript[-1]["answer"]["content"]).strip() if transcript else ""


def last_call(transcript: Sequence[Json], tool: str) -> Json | None:
    """The arguments of the last call of ``tool``, such as smolagents' ``final_answer``; None without a call.

    >>> function = {"name": "final_answer", "arguments": {"answer": "5"}}
    >>> answer = {"content": "", "tool_calls": [{"id": "call00000", "type": "function", "function": function}]}
    >>> last_call([{"extends": None, "messages": [], "answer": answer}], "final_answer")
    {'answer': '5'}
    """
    for turn in reversed(transcript):
        for call in reversed(turn["answer"].get("tool_calls", ())):
            if call["function"]["name"] == tool:
                arguments: Json = call["function"]["arguments"]
                return arguments
    return None


def prompt_and_completion(transcript: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """The last conversation in two parts: the messages of the first request, and everything after them.

    A conversation that begins otherwise, such as that of a sub-agent, is cut before its first answer.
    """
    entries = conversation(transcript)
    messages = [_plain(message) for entry in entries for message in (*entry["messages"], entry["answer"])]
    first_request = [_plain(message) for message in transcript[0]["messages"]]
    length = len(first_request)
    if messages[:length] != first_request:
        length = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
    return messages[:length], messages[length:]


def conversation(transcript: Sequence[Json]) -> list[Json]:
    """The entries of the last conversation, from its first to its last."""
    entries = [transcript[-1]]
    while entries[0]["extends"] is not None:
        entries.insert(0, transcript[entries[0]["extends"]])
    return entries


def _plain(message: Json) -> Json:
    """A message without the number of the turn that it repeats."""
    return {key: value for key, value in message.items() if key != "turn"}
