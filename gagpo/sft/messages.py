"""Demonstrations from a file of conversations in the common ``messages`` form, one JSON object per line.

A row holds ``messages``, each with ``role`` and ``content``, and may hold ``tools`` (their JSON schemas). Assistant
messages may call tools (``tool_calls``), and messages of the role ``tool`` answer them. Assistant messages are
imitated, written as the model's own chat template writes them, except those with ``weight: 0``, ``train: false`` or
``loss: false``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from gagpo.agents.encoding import THOUGHT, TextEncoder
from gagpo.agents.engines.base import end_of_response
from gagpo.base.errors import InvalidArgument
from gagpo.base.regular_file import open_bytes
from gagpo.data.episodes import Episode, Turn

ROLES = ("system", "user", "assistant", "tool")
WEIGHTS = ("weight", "train", "loss")
"""Keys of a message that say whether it is imitated: 0 or 1, or false or true."""

UNSUPPORTED = (
    "ignore",
    "loss_mask",
    "loss_weight",
    "mask",
    "masked",
    "train_detail",
    "train_on_turn",
    "trainable",
    "training",
)
"""Keys by which other trainers choose what is imitated."""

CHANNEL, CHANNEL_END = "<|channel|>", "<|end|>"  # of models whose responses consist of several parts
Message = Mapping[str, Any]


def read_messages(path: Path, tokenizer: PreTrainedTokenizerBase, most: int) -> list[Episode]:
    """At most ``most`` conversations of the file as episodes with token ids; a turn is an assistant message.

    Raises: InvalidArgument naming file, line and key of the first row that is wrong.
    """
    encoder, endings = TextEncoder(tokenizer), _Endings(tokenizer)
    episodes: list[Episode] = []
    for number, row in rows_of(path):
        if len(episodes) == most:
            break
        try:
            if half := half_character(row):
                raise InvalidArgument(half)
            messages, tools = _checked(row)
            episodes.append(_episode(messages, tools, encoder, endings, f"line {number}"))
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, line {number}: {error}") from None
    if not episodes:
        raise InvalidArgument(f"{path} holds no conversations")
    return episodes


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the object of every line that is not blank. Raises: InvalidArgument naming a line that is none."""
    try:
        with open_bytes(path) as file:
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


def half_character(value: object) -> str:
    """What is wrong with a value whose texts hold a lone surrogate, which no tokenizer can encode; '' if nothing is."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end].encode("ascii", "backslashreplace").decode()
        return f"half a character (a lone surrogate) after {around!r}"
    except (ValueError, RecursionError):
        return "nested too deeply"
    return ""


def _checked(row: Mapping[str, Any]) -> tuple[list[Message], list[Any] | None]:
    """The messages and tools of a row; InvalidArgument for the first that is wrong."""
    messages, tools = row.get("messages"), row.get("tools")
    if not isinstance(messages, list) or not messages:
        raise InvalidArgument("messages must be a list of at least one message")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidArgument("tools must be a list of objects")
    for key in ("weight", "train"):
        if row.get(key) not in (None, 1):
            raise InvalidArgument(f"{key} = {row[key]!r:.40} of a whole row is not supported; remove the row")
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")
    if messages[0]["role"] == "assistant":
        raise InvalidArgument("messages[0] must be of the role system or user, got assistant")
    if not any(message["role"] == "assistant" for message in messages):
        raise InvalidArgument("no message is of the role assistant, so there is nothing to imitate")
    if not any(message["role"] == "assistant" and _is_imitated(message) for message in messages):
        raise InvalidArgument("all assistant messages have weight 0, so there is nothing to imitate; remove the row")
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
    _check_weights(message, place)


def _check_weights(message: Message, place: str) -> None:
    if other := [key for key in UNSUPPORTED if key in message]:
        raise InvalidArgument(f"{place}.{other[0]} is not supported; write weight: 0 for a message not to imitate")
    weights = {key: message[key] for key in WEIGHTS if message.get(key) is not None}
    for key, weight in weights.items():
        if not isinstance(weight, int | float) or weight not in (0, 1):
            raise InvalidArgument(f"{place}.{key} must be 0 or 1 (got {weight!r:.40})")
        if weight and message["role"] != "assistant":
            raise InvalidArgument(
                f"{place}.{key}: only assistant messages are imitated, not the role {message['role']}"
            )
    if len({bool(weight) for weight in weights.values()}) > 1:
        raise InvalidArgument(f"{place}: {' and '.join(weights)} contradict each other; keep one of them")


def _is_imitated(message: Message) -> bool:
    return all(message.get(key) in (None, 1) for key in WEIGHTS)


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and "arguments" in function


def _episode(
    messages: Sequence[Message], tools: list[Any] | None, encoder: TextEncoder, endings: _Endings, task: str
) -> Episode:
    """The conversation as an episode.

    A prompt begins with the tokens of the previous prompt and response if the chat template only appends. Templates
    that rewrite earlier messages, such as those that drop thoughts, give a prompt of its own to each response.
    """
    tokenizer = encoder.tokenizer
    messages = [_as_data(_with_parsed_arguments(message), encoder) for message in messages]
    tools = encoder.protect_all(tools) if tools else None
    episode, before, before_ids, end = Episode(task, success=True, outcome="terminated"), "", np.zeros(0, np.int32), ""
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
        if prompt.startswith(before):
            kept_ids, more = endings.join(before_ids, end, prompt[len(before) :])
            prompt_ids = np.concatenate([kept_ids, encoder.encode(more)])
        else:
            prompt_ids = encoder.encode(prompt)
        text, end = endings.split(whole[len(prompt) :])
        if not end:
            end = endings.following(whole, _render_after(tokenizer, messages, place, tools))
        response_ids = encoder.encode(text + end)
        said = tokenizer.decode(response_ids, skip_special_tokens=True)
        observation = str(messages[place - 1]["content"])
        imitated = _is_imitated(message)
        episode.turns.append(
            Turn(observation, said, said, trainable=imitated, prompt_ids=prompt_ids, response_ids=response_ids)
        )
        before, before_ids = prompt + text, np.concatenate([prompt_ids, response_ids])
    return episode


class _Endings:
    """The tokens that end an answer, as a chat template writes them.

    Some templates write none: the next message's first token ends an answer (GLM-4), or the tokenizer's end token
    does, which the history then omits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.channels = CHANNEL in tokenizer.get_added_vocab()

    @functools.cached_property
    def default(self) -> str:
        """The end token of a response whose template writes none."""
        return str(self.tokenizer.convert_ids_to_tokens(end_of_response(self.tokenizer)))

    @functools.cached_property
    def special(self) -> list[str]:
        """The special tokens, longest first."""
        special = {str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        return sorted(filter(str.strip, special | {self.default}), key=len, reverse=True)

    def split(self, text: str) -> tuple[str, str]:
        """An answer as a template writes it, without what follows its end token; and that token, '' if it has none."""
        before, end, _ = text.partition(self.default)
        if end:
            return before, end
        trimmed = text.rstrip()
        end = next((name for name in self.special if trimmed.endswith(name)), "")
        if not end:
            return text, ""
        # Each part of a response with channels has an end, which does not end the response.
        ended = self.default if self.channels and end == CHANNEL_END else end
        return trimmed.removesuffix(end), ended

    def following(self, whole: str, longer: str) -> str:
        """The end of an answer without one, from the conversation up to it and the same with the next message."""
        after = longer.removeprefix(whole).lstrip() if longer.startswith(whole) else ""
        return next((name for name in self.special if after.startswith(name)), self.default)

    def join(self, ids: np.ndarray, end: str, after: str) -> tuple[np.ndarray, str]:
        """Tokens that end with ``end``, and the template's text after them, with a single end token."""
        rest = after.lstrip()
        if not end:
            return ids, after
        if rest.startswith(end):
            return ids, rest.removeprefix(end)
        if any(rest.startswith(name) for name in self.special):
            return ids[:-1], after
        return ids, after


def _render_after(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], place: int, tools: list[Any] | None
) -> str:
    """The conversation up to the message that answers ``messages[place]``; '' if the template cannot render it."""
    shown = [*messages[: place + 1], {"role": "tool" if messages[place].get("tool_calls") else "user", "content": "?"}]
    if place + 1 < len(messages) and messages[place + 1]["role"] in ("user", "tool"):
        shown[-1] = messages[place + 1]
    try:
        return _render(tokenizer, shown, tools, add_generation_prompt=False)
    except InvalidArgument:
        return ""


def _as_data(message: Message, encoder: TextEncoder) -> Message:
    """The message with control tokens that its texts spell as text; an assistant's marks of thoughts stay its own."""
    kept = THOUGHT if message["role"] == "assistant" else ()
    others = {key: encoder.protect_all(value) for key, value in message.items() if key not in ("role", "content")}
    return {**message, **others, "content": encoder.protect(message.get("content") or "", kept)}


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
            if half := half_character(arguments):
                raise InvalidArgument(f"tool_calls: the arguments hold {half}")
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: list[Any] | None, **how: Any
) -> str:
    try:
        return str(tokenizer.apply_chat_template([dict(one) for one in messages], tools=tools, tokenize=False, **how))
    except Exception as error:  # whatever a template raises for roles or calls that it does not know
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidArgument(f"the model's chat template refuses it: {reason}") from None
