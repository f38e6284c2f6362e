"""Templates of prompts: Jinja in a sandbox, with known fields, and with bounded time, memory and output.

A template is checked once, so that a fault shows before a run begins. A turn only fills it.
"""

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
        raise InvalidArgument(first_line(error), where=f"line {line}") from None
    except (RecursionError, MemoryError):
        raise InvalidArgument("is nested too deeply") from None
    if unknown := sorted(used - set(fields) - SANDBOX.globals.keys()):
        raise InvalidArgument(f"unknown field {unknown[0]!r:.80}", advice=hint(unknown[0], fields))
    if needs and needs not in used:
        raise InvalidArgument(f"does not show {needs}", advice=f"write {{{{ {needs} }}}}")


def fill(source: str, prompt: str = "", key: str = "", /, **fields: Any) -> str:
    """The text of a template. Raises: InvalidArgument saying what is wrong with it.

    prompt, key: name of the prompt and of its template, for errors.
    """
    where = f"prompt {prompt or 'of the settings'}: {key}" if key else None
    written: list[str] = []
    length = 0
    try:
        with bounded():
            for text in _compiled(source).generate(**fields):
                written.append(text)
                length += len(text)
                if length > MOST_TEXT:
                    raise InvalidArgument(f"writes more than {MOST_TEXT:,} characters")
    except Exception as error:  # a template may fail in any way
        problem = error if isinstance(error, InvalidArgument) else first_line(error)
        raise InvalidArgument(problem, key=key or None, where=where) from None
    return "".join(written)


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return SANDBOX.from_string(source)
