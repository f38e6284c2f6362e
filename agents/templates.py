"""Templates of prompts: Jinja in a sandbox, with known fields and bounded output."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.nearest import hint

MOST_TEXT = 1_000_000  # characters that a template may write


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates that reach nothing but their fields, and repeat no text by multiplication."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not all(isinstance(side, int | float) and abs(side) < 2**32 for side in (left, right)) or operator == "**":
            raise InvalidArgument(f"{operator} is for numbers, and ** is not available")
        return SandboxedEnvironment.call_binop(self, context, operator, left, right)


_JINJA = _Sandbox(undefined=StrictUndefined, autoescape=False)


def check(source: str, fields: Collection[str], needs: str = "") -> None:
    """Raise InvalidArgument for a template that is not Jinja, uses unknown fields, or does not use ``needs``."""
    try:
        used = meta.find_undeclared_variables(_JINJA.parse(source))
    except TemplateError as error:
        line = getattr(error, "lineno", 1)
        raise InvalidArgument(f"line {line}: {first_line(error)}") from None
    if unknown := sorted(used - set(fields) - _JINJA.globals.keys()):
        raise InvalidArgument(f"unknown field {unknown[0]!r:.80}; {hint(unknown[0], fields)}")
    if needs and needs not in used:
        raise InvalidArgument(f"does not show {needs}: write {{{{ {needs} }}}}")


def fill(source: str, **fields: Any) -> str:
    """The text of a template. Raises: InvalidArgument saying what is wrong with it."""
    parts, length = [], 0
    try:
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
    return _JINJA.from_string(source)
