"""Answers of MCP tools as text for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gagpo.envs.base import Outcome

MAX_ANSWER = 20_000  # characters of an answer


def answer_of(result: Any) -> Outcome:
    """The result of ``tools/call``: its content blocks, one per line, and ``structuredContent`` if no block is text.

    A block that is not text, such as an image or a link, becomes a short mark in brackets.
    """
    if not hasattr(result, "content"):  # the server asks the user a question, and there is no user
        return Outcome("the tool asks for further input, which is not supported", valid=False)
    lines = list(map(_block_text, result.content))
    if result.structured_content is not None and not any(_has_text(content_block) for content_block in result.content):
        lines.append(json.dumps(result.structured_content, ensure_ascii=False))
    return Outcome(_bounded("\n".join(lines)), valid=not result.is_error)


def with_content(message: Any) -> Any:
    """A message whose result is only ``structuredContent`` gets the empty ``content`` that the package requires."""
    result = getattr(message, "result", None)
    if isinstance(result, dict) and "structuredContent" in result and result.get("content") is None:
        result["content"] = []
    return message


def rejection_of(error: Any) -> Outcome:
    """A JSON-RPC error in answer to a call, as an invalid turn with the server's message and data."""
    reasons = [str(error.message).strip() or f"error {error.code}"]
    if error.data not in (None, "", reasons[0]):
        reasons.append(error.data if isinstance(error.data, str) else json.dumps(error.data, ensure_ascii=False))
    return Outcome(_bounded(": ".join(reasons)), valid=False)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    return f"[{' '.join([block.type.replace('_', ' '), *_block_facts(block)])}]"


def _block_facts(block: Any) -> Iterator[str]:
    """The name, address and media type of a block, as far as it has them."""
    described = getattr(block, "resource", block)
    for name in ("name", "uri", "mime_type"):
        value = getattr(described, name, None)
        if value:
            yield " ".join(str(value).split())


def _has_text(block: Any) -> bool:
    text = getattr(getattr(block, "resource", block), "text", None)
    return isinstance(text, str) and bool(text.strip())


def _bounded(text: str) -> str:
    """Valid Unicode of a limited length."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MAX_ANSWER:
        return text
    return f"{text[:MAX_ANSWER]}\n[{len(text) - MAX_ANSWER:,} more characters]"
