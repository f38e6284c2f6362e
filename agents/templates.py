"""Templates of prompts: Jinja in a sandbox, with known fields, and with bounded time, memory and output."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from jinja2 import Template, TemplateError, meta

from gagpo.agents.template_sandbox import MOST_TEXT, SANDBOX, bounded
from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.nearest import hint


def check(source: str, fields: Collection[str], needs: str = "") -> None:
    """Raise InvalidArgument for a template that is not Jinja, uses unknown fields, or does not use ``needs``."""
    try:
        with bounded():
            used = meta.find_undeclared_variables(SANDBOX.parse(source))
    except TemplateError as error:
        line = getattr(error, "lineno", 1)
        raise InvalidArgument(f"line {line}: {first_line(error)}") from None
    except (RecursionError, MemoryError):
        raise InvalidArgument("is nested too deeply") from None
    if unknown := sorted(used - set(fields) - SANDBOX.globals.keys()):
        raise InvalidArgument(f"unknown field {unknown[0]!r:.80}; {hint(unknown[0], fields)}")
    if needs and needs not in used:
        raise InvalidArgument(f"does not show {needs}: write {{{{ {needs} }}}}")


def fill(source: str, **fields: Any) -> str:
    """The text of a template. Raises: InvalidArgument saying what is wrong with it."""
    parts, length = [], 0
    try:
        with bounded():
            for part in _compiled(source).generate(**fields):
                parts.append(part)
                length += len(part)
                if length > MOST_TEXT:
                    raise InvalidArgument(f"writes more than {MOST_TEXT:,} characters")
    except InvalidArgument:
        raise
    except Exception as error:  # a template may fail in any way
        raise InvalidArgument(first_line(error)) from None
    return "".join(parts)


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return SANDBOX.from_string(source)
