"""Demonstrations from a file of conversations in the common ``messages`` form, one JSON object per line.

A row holds ``messages``, each with ``role`` and ``content``, and may hold ``tools`` (their JSON schemas). Assistant
messages may call tools (``tool_calls``), and messages of the role ``tool`` answer them. All assistant messages are
imitated, written as the model's own chat template writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from gagpo.agents.encoding import THOUGHT, TextEncoder
from gagpo.agents.engines.base import end_of_response
from gagpo.agents.episodes import Episode, Turn
from gagpo.base.errors import InvalidArgument

ROLES = ("system", "user", "assistant", "tool")
Message = Mapping[str, Any]


def read_messages(path: Path, tokenizer: PreTrainedTokenizerBase, most: int) -> list[Episode]:
    """At most ``most`` conversations of the file as episodes with token ids; a turn is an assistant message.

    Raises: InvalidArgument naming file, line and key of the first row that is wrong.
    """
    encoder = TextEncoder(tokenizer)
    episodes: list[Episode] = []
    for number, row in rows_of(path):
        if len(episodes) == most:
            break
        try:
            messages, tools = _checked(row)
            episodes.append(_episode(messages, tools, encoder, f"line {number}"))
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, line {number}: {error}") from None
    if not episodes:
        raise InvalidArgument(f"{path} holds no conversations")
    return episodes


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the object of every line that is not blank. Raises: InvalidArgument naming a line that is none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InvalidArgument(f"{path}, line {number}: not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise InvalidArgument(f"{path}, line {number}: must be an object, got {row!r:.40}")
                yield number, row
    except OSError as error:
        raise InvalidArgument(f"sft.data={path} cannot be read ({error.strerror})") from None


def _checked(row: Mapping[str, Any]) -> tuple[list[Message], list[Any] | None]:
    """The messages and tools of a row; InvalidArgument for the first that is wrong."""
    messages, tools = row.get("messages"), row.get("tools")
    if not isinstance(messages, list) or not messages:
        raise InvalidArgument("messages must be a list of at least one message")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidArgument("tools must be a list of objects")
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")
    if messages[0]["role"] == "assistant":
        raise InvalidArgument("messages[0] must be of the role system or user, got assistant")
    if not any(message["role"] == "assistant" for message in messages):
        raise InvalidArgument("no message is of the role assistant, so there is nothing to imitate")
    return messages, tools


def _check_message(message: object, place: str) -> None:
    if not isinstance(message, dict):
        raise InvalidArgument(f"{place} must be an object, got {message!r:.40}")
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise InvalidArgument(f"{place}.role must be one of {', '.join(ROLES)}, got {role!r:.40}")
    if calls is not None:
        if role != "assistant":
            raise InvalidArgument(f"{place}.tool_calls: only an assistant calls tools, not the role {role}")
        if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
            raise InvalidArgument(f"{place}.tool_calls must be a list of objects with function.name and .arguments")
    if not isinstance(content, str) and not (content is None and calls):
        raise InvalidArgument(f"{place}.content must be a text, got {content!r:.40}")
    if role == "assistant" and not content and not calls:
        raise InvalidArgument(f"{place}.content is empty, so there is nothing to imitate")


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and "arguments" in function


def _episode(messages: Sequence[Message], tools: list[Any] | None, encoder: TextEncoder, task: str) -> Episode:
    """The conversation as an episode.

    A prompt begins with the tokens of the previous prompt and response if the chat template only appends. Templates
    that rewrite earlier messages, such as those that drop thoughts, give a prompt of its own to each response.
    """
    tokenizer = encoder.tokenizer
    messages = [_as_data(_with_parsed_arguments(message), encoder) for message in messages]
    tools = encoder.protect_all(tools) if tools else None
    episode, before, before_ids = Episode(task, success=True, outcome="terminated"), "", np.zeros(0, np.int32)
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _render(tokenizer, messages[:place], tools, add_generation_prompt=True)
        whole = _render(tokenizer, messages[: place + 1], tools, add_generation_prompt=False)
        if not whole.startswith(prompt):
            raise InvalidArgument(
                f"messages[{place}]: the chat template does not continue its own prompt for an answer, so it cannot "
                "be told which tokens to imitate"
            )
        end = tokenizer.convert_ids_to_tokens(end_of_response(tokenizer))
        text, ended = _split_end(whole[len(prompt) :], str(end))
        if prompt.startswith(before):
            prompt_ids = np.concatenate([before_ids, encoder.encode(prompt[len(before) :])])
        else:
            prompt_ids = encoder.encode(prompt)
        response_ids = encoder.encode(text + ended)
        said = tokenizer.decode(response_ids, skip_special_tokens=True)
        turn = Turn(str(messages[place - 1]["content"]), said, said)
        turn.prompt_ids, turn.response_ids = prompt_ids, response_ids
        episode.turns.append(turn)
        before, before_ids = prompt + text + ended, np.concatenate([prompt_ids, response_ids])
    return episode


def _as_data(message: Message, encoder: TextEncoder) -> Message:
    """The message with control tokens that its texts spell as text; an assistant's marks of thoughts stay its own."""
    kept = THOUGHT if message["role"] == "assistant" else ()
    texts = {"content": encoder.protect(message.get("content") or "", kept)}
    calls = {"tool_calls": encoder.protect_all(message["tool_calls"])} if message.get("tool_calls") else {}
    return {**message, **texts, **calls}


def _with_parsed_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as objects: chat templates write them as JSON themselves."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise InvalidArgument(f"tool_calls: the arguments {arguments!r:.40} are not JSON") from None
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _split_end(text: str, end: str) -> tuple[str, str]:
    """An answer as a template writes it, without what follows its end token; and that token, '' if there is none."""
    before, found, _ = text.partition(end)
    return before, found


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: list[Any] | None, **how: Any
) -> str:
    try:
        return str(tokenizer.apply_chat_template([dict(one) for one in messages], tools=tools, tokenize=False, **how))
    except Exception as error:  # whatever a template raises for roles or calls that it does not know
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidArgument(f"the model's chat template refuses it: {reason}") from None
