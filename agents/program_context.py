"""The prompts of programs: the messages that they send, with their answers as the tokens that were sampled."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gagpo.agents import chat_template
from gagpo.agents.call_formats import CallFormat, call_id, nine_characters
from gagpo.agents.chat_template import PLACEHOLDER, TemplateFailed
from gagpo.agents.context import Context, GenerationRequest, RejectedRequest
from gagpo.agents.encoding import Ids
from gagpo.agents.engines.base import Response
from gagpo.agents.prompts import Message, Prompt
from gagpo.base.errors import GagpoError, first_line
from gagpo.data import Turn
from gagpo.envs.gateway.messages import Completion, Json, unexpected
from gagpo.envs.tools import CallError, read_call


class ProgramContext(Context):
    """A :class:`Context` for programs that word their prompts and read the responses themselves.

    calls: the model's call format, as of a :class:`Context`.
    """

    def __init__(self, tokenizer: Any, prompt: Prompt, template: Mapping[str, Any] | None = None, calls: str = "auto"):
        super().__init__(tokenizer, prompt, template=template, calls=calls)
        self._secret = secrets.token_hex(8)

    def ask(
        self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]
    ) -> GenerationRequest | RejectedRequest:
        """The prompt; a rejection for whatever its messages and tools cause, because a program is not trusted."""
        request: Json = info["request"]
        try:
            # An unknown format rejects the request: no call could be read.
            call_format = self.call_format if request["tools"] else None
            prompt_ids = self._conversation(turns, request)
        except (GagpoError, RecursionError) as error:
            return RejectedRequest(400, f"the messages cannot be rendered: {first_line(error, 400)}")
        except Exception as error:
            return RejectedRequest(500, str(unexpected(error)))
        read = functools.partial(self._read, request, call_format, prompt_ids)
        return GenerationRequest(prompt_ids, tuple(request["stop"]), request["max_tokens"], read)

    def exceeds(self, info: Mapping[str, Any], max_length: int) -> bool:
        """As documented there: encoding the longest request that a program may send takes minutes."""
        request: Json = info["request"]
        return _characters([request["messages"], request["tools"]]) > max_length * self._most_characters

    @functools.cached_property
    def _most_characters(self) -> int:
        """Characters of text that one token can be, with a margin for tokenizers that shorten spaces."""
        return 4 * max(map(len, self.tokenizer.get_vocab()))

    def _conversation(self, turns: Sequence[Turn], request: Json) -> Ids:
        """The prompt: the tokens of the turn that the messages extend, if there is one, and the messages."""
        extends: int | None = request["extends"]
        sent = request["messages"]
        if any(map(_has_foreign_id, sent)) and self._needs_nine_characters:
            sent = [_with_nine(message) for message in sent]
        messages = [self._for_template(message) for message in sent]
        numbers: list[int] = [message["turn"] for message in sent if "turn" in message]
        id_lists: list[Ids] = []
        if extends is None:
            segments = self._pieces(self.tool_form.begin(messages, self._encoder.protect_all(request["tools"])))
            id_lists.append(self._encoder.encode(segments[0]))
        else:
            chat = [
                {"role": "user", "content": "?"},
                self._for_template({"role": "assistant", "turn": extends}),
                *messages,
            ]
            segments = self._pieces(self.tool_form.render(chat))
            numbers.insert(0, extends)
            id_lists.append(turns[extends].prompt_ids)
        if list(map(int, segments[1::2])) != numbers:
            raise chat_template.fault(self.tokenizer, "does not show every answer of the model")
        for number, after in zip(numbers, segments[2::2], strict=True):
            response_ids, text = self._control.join(turns[number].response_ids, after)
            id_lists += [response_ids, self._encoder.encode(text)]
        return np.concatenate(id_lists)

    def _for_template(self, message: Message) -> Message:
        """A message for the template: a mark in place of an answer, and otherwise data."""
        if "turn" in message:
            return {"role": "assistant", "content": f"{PLACEHOLDER}{self._secret}{message['turn']}{PLACEHOLDER}"}
        role = {"role": message["role"]}
        return role | {key: self._encoder.protect_all(value) for key, value in message.items() if key != "role"}

    def _pieces(self, rendered: str) -> list[str]:
        """Text, the number of an answer, text, ..."""
        return re.split(f"{PLACEHOLDER}{self._secret}([0-9]+){PLACEHOLDER}", rendered)

    @functools.cached_property
    def _needs_nine_characters(self) -> bool:
        """Whether the template rejects ids of calls that have other than nine characters, as Mistral's do."""
        works = []
        for name in ("probe0000", "probe_000000"):
            call = {"id": name, "type": "function", "function": {"name": "probe", "arguments": {}}}
            chat: list[Json] = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "!", "tool_call_id": name},
            ]
            try:
                self.tool_form.render(chat)
                works.append(True)
            except TemplateFailed:
                works.append(False)
        return works == [True, False]

    def _read(self, request: Json, call_format: CallFormat | None, prompt_ids: Ids, response: Response) -> Turn:
        """The turn of a response. call_format: for a request with tools."""
        ids, text, stop = self._cut(response, request["stop"])
        content = text
        calls: list[Json] = []
        if call_format is not None:
            raw = self._control.text_with_calls(ids)
            calls = _tool_calls(call_format.find(raw), request["number"])
            if calls:
                content = raw.partition(call_format.mark)[0] if call_format.mark in raw else ""
        finish = "tool_calls" if calls else "stop"
        if not (response.stopped or stop):
            finish = "length"
        logprobs = response.logprobs[: len(ids)]
        tokens = zip(ids, logprobs, strict=True) if request["logprobs"] else ()
        listed = [(self.tokenizer.decode([token]), float(logprob)) for token, logprob in tokens]
        listed_ids = [int(token) for token in ids] if request.get("ids") else ()
        completion = Completion(content, calls, finish, (len(prompt_ids), len(ids)), listed, listed_ids, stop)
        turn = Turn.of(self._control.text(ids), completion.text, finish == "length")
        return replace(turn, completion=completion.action, prompt_ids=prompt_ids, response_ids=ids, logprobs=logprobs)

    def _cut(self, response: Response, stop: Sequence[str]) -> tuple[Ids, str, str]:
        """The response up to the token that completes a stop string, its text before that string, and the string."""
        ids, text = response.ids, self._control.text(response.ids)
        if not any(mark in text for mark in stop):
            return ids, text, ""
        count = next(n for n in range(1, len(ids) + 1) if any(mark in self._control.text(ids[:n]) for mark in stop))
        text = self._control.text(ids[:count])
        end, mark = min((text.index(mark), mark) for mark in stop if mark in text)
        return ids[:count], text[:end], mark


def _tool_calls(candidates: Sequence[str], number: int) -> list[Json]:
    """The tool calls of a response; none if one of them is damaged, so that the program gets the text.

    number: of the turn, for ids.
    """
    try:
        calls = [read_call(candidate) for candidate in candidates]
    except CallError:
        return []
    ids = [call_id(call.id, (1000 * number + index) % 100_000) for index, call in enumerate(calls)]
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return [{"id": i, "type": "function", "function": f} for i, f in zip(ids, functions, strict=True)]


def _characters(value: Any) -> int:
    """Length of all texts in plain JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _ids(message: Json) -> list[str]:
    """The ids of the calls that a message makes or answers."""
    answers = [message.get("tool_call_id", "")] if message["role"] == "tool" else []
    return [*answers, *(call["id"] for call in message.get("tool_calls", ()))]


def _has_foreign_id(message: Json) -> bool:
    """Whether an id of a program's own is shown; answers of the model are shown as their tokens."""
    return "turn" not in message and any(name != nine_characters(name) for name in _ids(message))


def _with_nine(message: Json) -> Json:
    """The message with ids of nine characters."""
    changed = dict(message)
    if message["role"] == "tool":
        changed["tool_call_id"] = nine_characters(message.get("tool_call_id", ""))
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": nine_characters(call["id"])} for call in message["tool_calls"]]
    return changed
