"""Reads conversations from JSONL, JSON, CSV, TSV and Parquet files, in the forms that other trainers read.

Every form becomes ``messages``:

=======================================  ===============================================================================
row                                      meaning
=======================================  ===============================================================================
``messages``                             messages with ``role`` and ``content``
``conversations``                        messages with ``from`` and ``value`` (ShareGPT)
``prompt`` and ``completion``            texts, or lists of messages; also ``prompt`` and ``response``,
                                         ``question`` and ``answer``
``instruction``, ``input``, ``output``   texts; ``input`` follows the instruction and may be empty (Alpaca)
=======================================  ===============================================================================

``system`` (a text) and ``tools`` (JSON schemas) may come with any of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gagpo.base.errors import InvalidArgument
from gagpo.base.regular_file import open_bytes
from gagpo.base.row_files import (
    SUFFIXES,
    BadRow,
    DataMissing,
    columns_text,
    file_rows,
    folder_splits,
    renamed,
    require_readable,
    suffix_of,
)

PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"))
"""Columns of a question and its answer."""
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Roles of ShareGPT and of messages."""

Conversation = dict[str, Any]


def conversations(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, Conversation]]:
    """The place of every row, such as ``line 3``, and its conversation: ``messages`` and perhaps ``tools``.

    columns: fields such as ``prompt``, each with the name of its column.

    Raises: InvalidArgument naming the file, the row and the columns that it has.
    """
    for row_name, row in rows_of(path):
        try:
            chosen = renamed(row, columns)
            if "prompt" in columns:  # the user's choice, whatever else the row holds
                chosen = {name: value for name, value in chosen.items() if name not in ("messages", "conversations")}
            yield row_name, conversation_of(chosen)
        except InvalidArgument as error:
            raise InvalidArgument(error, where=row_name) from None


def holds_conversations(path: Path, columns: Mapping[str, str]) -> bool:
    """Whether the first row is a conversation, not an episode."""
    if columns:
        return True
    row = next((row for _, row in rows_of(path)), {})
    return "turns" not in row


def rows_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place of every row, with the file, and the row. Of a folder, the rows of its training split.

    Raises: InvalidArgument naming a row that is not an object.
    """
    for file in _files(path):
        is_lines = suffix_of(file) not in SUFFIXES or suffix_of(file) in (".jsonl", ".ndjson")
        require_readable(file)
        for number, row in _json_lines(file) if is_lines else _table_rows(file):
            row_name = f"{file}, {'line' if is_lines else 'row'} {number}"
            if isinstance(row, Exception):
                raise InvalidArgument(row, where=row_name)
            if not isinstance(row, dict):
                raise InvalidArgument(f"must be an object, got {row!r:.40}", where=row_name)
            yield row_name, row


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        splits = folder_splits(path)
    except (BadRow, DataMissing, InvalidArgument) as error:
        raise InvalidArgument(f"sft.data={path} cannot be read (not a regular file): {error}", key="sft.data") from None
    return splits.get("train") or next(iter(splits.values()))


def _json_lines(path: Path) -> Iterator[tuple[int, object]]:
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line.decode("utf-8-sig") if number == 1 else line)
                except (ValueError, RecursionError) as error:
                    yield number, InvalidArgument(f"not JSON ({error})")
    except OSError as error:
        raise InvalidArgument(f"sft.data={path} cannot be read ({error.strerror})", key="sft.data") from None


def _table_rows(path: Path) -> Iterator[tuple[int, object]]:
    try:
        yield from file_rows(path, "'prompt' and 'completion'")
    except (BadRow, DataMissing) as error:
        raise InvalidArgument(f"sft.data: {error}", key="sft.data") from None


# Forms ----------------------------------------------------------------------------------------------------------------


def conversation_of(row: Mapping[str, Any]) -> Conversation:
    """The conversation of a row in any of the forms.

    Raises: InvalidArgument, if it has none of them.

    >>> conversation_of({"question": "2 + 3?", "answer": "5"})["messages"]
    [{'role': 'user', 'content': '2 + 3?'}, {'role': 'assistant', 'content': '5'}]
    """
    conversation = {name: value for name, value in row.items() if name in ("weight", "train")}
    tools = _parsed(row, "tools")
    if tools:
        conversation["tools"] = tools
    messages = _messages(row)
    system = _text(row, "system")
    if system.strip() and isinstance(messages, list):
        messages = [{"role": "system", "content": system}, *messages]
    return {**conversation, "messages": messages}


def _messages(row: Mapping[str, Any]) -> object:
    """The messages as the row has them; they are checked later."""
    if "messages" in row:
        return _without_null(_parsed(row, "messages"))
    if "conversations" in row:
        return [_of_sharegpt(message, index) for index, message in enumerate(_list(row, "conversations"))]
    pair = next((pair for pair in PAIRS if all(name in row for name in pair)), None)
    if pair is None:
        expected = "messages, or prompt and completion"
        raise InvalidArgument(
            f"no conversation: no columns {expected}; {columns_text(row)}; name them with "
            "sft.data={path: FILE, columns: {prompt: NAME, completion: NAME}}"
        )
    question = row[pair[0]]
    addition = _text(row, "input") if pair[0] == "instruction" else ""
    if isinstance(question, str) and addition.strip():
        question = f"{question}\n\n{addition}"
    return [*_side(question, "user", pair[0]), *_side(row[pair[1]], "assistant", pair[1])]


def _side(value: object, role: str, column: str) -> list[Any]:
    """The messages of a prompt or a completion."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _list_of_messages(value) or value
    if isinstance(value, str) and value.strip():
        return [{"role": role, "content": value}]
    if isinstance(value, list) and value:
        return list(_without_null(value))
    raise InvalidArgument(f"column {column!r} must be a text or a list of messages (got {value!r:.40})", key=column)


def _list_of_messages(text: str) -> list[Any] | None:
    """The messages of a text that is a list of them in JSON, as a CSV file holds it; None for any other text."""
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(messages, list) and all(
        isinstance(message, dict) and "role" in message for message in messages
    )
    return messages if is_list else None


def _text(row: Mapping[str, Any], column: str) -> str:
    """The text of a column that may be missing."""
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"column {column!r} must be a text (got {value!r:.40})", key=column)
    return value or ""


def _of_sharegpt(message: object, place: int) -> dict[str, object]:
    if not isinstance(message, dict) or "from" not in message or "value" not in message:
        raise InvalidArgument(
            f"conversations[{place}] must be an object with from and value, got {message!r:.40}",
            key=f"conversations[{place}]",
        )
    role = _ROLES.get(message["from"]) if isinstance(message["from"], str) else None
    if role is None:
        choices = ", ".join(_ROLES)
        raise InvalidArgument(
            f"conversations[{place}]: unknown from {message['from']!r:.40}",
            key=f"conversations[{place}]",
            advice=f"choose one of {choices}",
        )
    weights = {name: message[name] for name in ("weight", "train", "loss") if name in message}
    return {"role": role, "content": message["value"], **weights}


def _list(row: Mapping[str, Any], column: str) -> list[Any]:
    value = _parsed(row, column)
    if not isinstance(value, list):
        raise InvalidArgument(f"column {column!r} must be a list of messages (got {value!r:.40})", key=column)
    return value


def _parsed(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column; a text that is JSON is read, which is how a CSV file holds a list."""
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        return None if value == "" else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _without_null(messages: Any) -> Any:
    """Messages without the keys whose value is null: Parquet gives every message the keys of all."""
    if not isinstance(messages, list):
        return messages
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"}
        if isinstance(message, dict)
        else message
        for message in messages
    ]
