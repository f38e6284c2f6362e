"""Demonstrations from a file of conversations, which :mod:`gagpo.sft.conversation_files` reads as ``messages``.

A row holds ``messages``, each with ``role`` and ``content``, and may hold ``tools`` (their JSON schemas). Assistant
messages may call tools (``tool_calls``), and messages of the role ``tool`` answer them. Assistant messages are
imitated, written as the model's own chat template writes them, except those with ``weight: 0``, ``train: false`` or
``loss: false``. For a template without a place for tools messages describe them, as in RL
(:mod:`gagpo.sft.conversation_template`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from gagpo.agents.encoding import TextEncoder, encoding_defect
from gagpo.agents.engines.base import end_of_response
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, Turn
from gagpo.sft.conversation_files import conversations
from gagpo.sft.conversation_template import ConversationTemplate, Message

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

# Of models whose responses consist of several parts.
CHANNEL = "<|channel|>"
CHANNEL_END = "<|end|>"


def read_messages(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    max_conversations: int,
    columns: Mapping[str, str] | None = None,
    *,
    variables: Mapping[str, Any] | None = None,
    calls: str = "auto",
) -> list[Episode]:
    """At most ``max_conversations`` of the file as episodes with token ids; a turn is an assistant message.

    columns: fields such as ``prompt``, each with the name of its column.
    variables, calls: of the chat template and the model's call format, as in ``context``.

    Raises: InvalidArgument naming file, row and key of the first row that is wrong.
    """
    template = ConversationTemplate(TextEncoder(tokenizer), variables or {}, calls)
    end_tokens = _EndTokens(tokenizer)
    episodes: list[Episode] = []
    for row_name, row in conversations(path, columns or {}):
        if len(episodes) == max_conversations:
            break
        try:
            defect = encoding_defect(row)
            if defect:
                raise InvalidArgument(defect)
            messages, tools = _checked(row)
            episodes.append(_episode(messages, tools, template, end_tokens, row_name.rpartition(", ")[2]))
        except InvalidArgument as error:
            raise InvalidArgument(error, where=row_name) from None
    if not episodes:
        raise InvalidArgument("holds no conversations", where=path)
    return episodes


def _checked(row: Mapping[str, Any]) -> tuple[list[Message], list[Any] | None]:
    """The messages and tools of a row; InvalidArgument for the first that is wrong."""
    messages = row.get("messages")
    tools = row.get("tools")
    if not isinstance(messages, list) or not messages:
        raise InvalidArgument("messages must be a list of at least one message", key="messages")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidArgument("tools must be a list of objects", key="tools")
    for key in ("weight", "train"):
        if row.get(key) not in (None, 1):
            raise InvalidArgument(
                f"{key} = {row[key]!r:.40} of a whole row is not supported", key=key, advice="remove the row"
            )
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    if messages[0]["role"] == "assistant":
        raise InvalidArgument("messages[0] must be of the role system or user, got assistant", key="messages[0]")
    if not any(message["role"] == "assistant" for message in messages):
        raise InvalidArgument("no message is of the role assistant, so there is nothing to imitate")
    if not any(message["role"] == "assistant" and _is_imitated(message) for message in messages):
        raise InvalidArgument(
            "all assistant messages have weight 0, so there is nothing to imitate", advice="remove the row"
        )
    return messages, tools


def _check_message(message: object, place: str) -> None:
    if not isinstance(message, dict):
        raise InvalidArgument(f"{place} must be an object, got {message!r:.40}", key=place)
    role = message.get("role")
    content = message.get("content")
    calls = message.get("tool_calls")
    if role not in ROLES:
        raise InvalidArgument(f"{place}.role must be one of {', '.join(ROLES)}, got {role!r:.40}", key=f"{place}.role")
    if calls is not None:
        if role != "assistant":
            raise InvalidArgument(
                f"{place}.tool_calls: only an assistant calls tools, not the role {role}", key=f"{place}.tool_calls"
            )
        if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
            raise InvalidArgument(
                f"{place}.tool_calls must be a list of objects with function.name and .arguments",
                key=f"{place}.tool_calls",
            )
    if not isinstance(content, str) and not (content is None and calls):
        raise InvalidArgument(f"{place}.content must be a text, got {content!r:.40}", key=f"{place}.content")
    if role == "assistant" and not content and not calls:
        raise InvalidArgument(f"{place}.content is empty, so there is nothing to imitate", key=f"{place}.content")
    _check_weights(message, place)


def _check_weights(message: Message, place: str) -> None:
    unsupported = [key for key in UNSUPPORTED if key in message]
    if unsupported:
        raise InvalidArgument(
            f"{place}.{unsupported[0]} is not supported",
            key=f"{place}.{unsupported[0]}",
            advice="write weight: 0 for a message not to imitate",
        )
    weights = {key: message[key] for key in WEIGHTS if message.get(key) is not None}
    for key, weight in weights.items():
        if not isinstance(weight, int | float) or weight not in (0, 1):
            raise InvalidArgument(f"{place}.{key} must be 0 or 1 (got {weight!r:.40})", key=f"{place}.{key}")
        if weight and message["role"] != "assistant":
            raise InvalidArgument(
                f"{place}.{key}: only assistant messages are imitated, not the role {message['role']}",
                key=f"{place}.{key}",
            )
    if len({bool(weight) for weight in weights.values()}) > 1:
        raise InvalidArgument(f"{' and '.join(weights)} contradict each other", where=place, advice="keep one of them")


def _is_imitated(message: Message) -> bool:
    return all(message.get(key) in (None, 1) for key in WEIGHTS)


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and "arguments" in function


def _episode(
    messages: Sequence[Message],
    tools: list[Any] | None,
    template: ConversationTemplate,
    end_tokens: _EndTokens,
    task: str,
) -> Episode:
    """The conversation as an episode.

    A prompt begins with the tokens of the previous prompt and response if the chat template only appends. Templates
    that rewrite earlier messages, such as those that drop thoughts, give a prompt of its own to each response.
    """
    encoder = template.encoder
    conversation = template.conversation(messages, tools)
    answers = iter((index, message) for index, message in enumerate(messages) if message["role"] == "assistant")
    episode = Episode(task, success=True, outcome="terminated")
    previous_text = ""  # the prompt and the response of the previous turn, without its end token
    previous_ids = np.zeros(0, np.int32)
    end_token = ""
    for index, rendered in enumerate(conversation.messages):
        if rendered["role"] != "assistant":
            continue
        place_in_row, message = next(answers)
        prompt, through = template.prompt(conversation, index), template.through(conversation, index)
        if not through.startswith(prompt):
            raise InvalidArgument(
                (
                    f"messages[{place_in_row}]: the chat template does not continue its own prompt for an "
                    "answer, so it cannot be told which tokens to imitate"
                ),
                key=f"messages[{place_in_row}]",
            )
        if prompt.startswith(previous_text):
            prefix_ids, addition = end_tokens.join(previous_ids, end_token, prompt[len(previous_text) :])
            prompt_ids = np.concatenate([prefix_ids, encoder.encode(addition)])
        else:
            prompt_ids = encoder.encode(prompt)
        text, end_token = end_tokens.split(through[len(prompt) :])
        if _is_imitated(message) and not text.strip():
            raise InvalidArgument(
                f"messages[{place_in_row}]: the chat template shows nothing of it, so there is nothing to imitate",
                key=f"messages[{place_in_row}]",
            )
        if not end_token:
            end_token = end_tokens.following(through, template.through_next(conversation, index))
        response_ids = encoder.encode(text + end_token)
        response = encoder.tokenizer.decode(response_ids, skip_special_tokens=True)
        turn = Turn(
            observation=str(conversation.messages[index - 1]["content"]),
            response=response,
            action=response,
            trainable=_is_imitated(message),
            prompt_ids=prompt_ids,
            response_ids=response_ids,
        )
        episode.turns.append(turn)
        previous_text = prompt + text
        previous_ids = np.concatenate([prompt_ids, response_ids])
    return episode


class _EndTokens:
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
        response, end, _ = text.partition(self.default)
        if end:
            return response, end
        trimmed = text.rstrip()
        end = next((name for name in self.special if trimmed.endswith(name)), "")
        if not end:
            return text, ""
        # In a response with channels each part has an end token, which does not end the response.
        end_token = self.default if self.channels and end == CHANNEL_END else end
        return trimmed.removesuffix(end), end_token

    def following(self, text: str, longer_text: str) -> str:
        """The end of an answer without one, from the conversation up to it and the same with the next message."""
        continuation = longer_text.removeprefix(text).lstrip() if longer_text.startswith(text) else ""
        return next((name for name in self.special if continuation.startswith(name)), self.default)

    def join(self, ids: np.ndarray, end: str, text: str) -> tuple[np.ndarray, str]:
        """Tokens that end with ``end``, and the template's text after them, with a single end token.

        The template writes the end of the previous response before the next message: the same token again, another
        special token in its place, or none.
        """
        stripped = text.lstrip()
        if not end:
            return ids, text
        if stripped.startswith(end):
            return ids, stripped.removeprefix(end)
        if any(stripped.startswith(name) for name in self.special):
            return ids[:-1], text
        return ids, text
