"""Answers of MCP tools as text for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gagpo.envs.base import Outcome

MAX_ANSWER = 20_000  # characters of an answer


def answer_of(result: Any) -> Outcome:
    """The result of ``tools/call``: its parts, one per line, and ``structuredContent`` if no part is text.

    A part that is not text, such as an image or a link, is a short mark in brackets.
    """
    if not hasattr(result, "content"):  # the server asks the user, and there is none
        return Outcome("the tool asks for further input, which is not supported", valid=False)
    parts = list(map(_shown, result.content))
    if result.structured_content is not None and not any(_has_text(part) for part in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return Outcome(_bounded("\n".join(parts)), valid=not result.is_error)


def with_content(message: Any) -> Any:
    """A message whose result is only ``structuredContent`` gets the empty ``content`` that the package requires."""
    result = getattr(message, "result", None)
    if isinstance(result, dict) and "structuredContent" in result and result.get("content") is None:
        result["content"] = []
    return message


def rejection_of(error: Any) -> Outcome:
    """A JSON-RPC error in answer to a call, as an invalid turn with the server's message and data."""
    parts = [str(error.message).strip() or f"error {error.code}"]
    if error.data not in (None, "", parts[0]):
        parts.append(error.data if isinstance(error.data, str) else json.dumps(error.data, ensure_ascii=False))
    return Outcome(_bounded(": ".join(parts)), valid=False)


def _shown(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource" and hasattr(part.resource, "text"):
        return str(part.resource.text)
    return f"[{' '.join([part.type.replace('_', ' '), *_facts(part)])}]"


def _facts(part: Any) -> Iterator[str]:
    """What a mark says about a part: the name, address and media type that it has."""
    about = getattr(part, "resource", part)
    for name in ("name", "uri", "mime_type"):
        if value := getattr(about, name, None):
            yield " ".join(str(value).split())


def _has_text(part: Any) -> bool:
    text = getattr(getattr(part, "resource", part), "text", None)
    return isinstance(text, str) and bool(text.strip())


def _bounded(text: str) -> str:
    """Valid Unicode of a limited length."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MAX_ANSWER:
        return text
    return f"{text[:MAX_ANSWER]}\n[{len(text) - MAX_ANSWER:,} more characters]"
