"""The HTML of a report: templates that escape everything, without scripts."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

LONGEST_TEXT = 6000  # characters shown of one text


def text(value: object, longest: int = LONGEST_TEXT) -> Markup:
    """Any text as safe HTML: escaped, invisible characters made visible, length capped.

    >>> str(text("<b>" + chr(27) + chr(0x202e)))
    '&lt;b&gt;\\\\x1b\\\\u202e'
    """
    content = str(value)
    visible = "".join(map(_visible, content[:longest]))
    more = len(content) - longest
    remaining = (
        Markup('<span class="more"> … {} more characters</span>').format(f"{more:,}") if more > 0 else Markup("")
    )
    return escape(visible) + remaining


def render(template: str, **values: Any) -> Markup:
    """A template with values filled in; a missing value is an error."""
    return Markup(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gagpo.eval.report", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["shown"] = text
    # Long task types may wrap at underscores.
    environment.filters["breakable"] = lambda value: Markup(str(value).replace("_", "_<wbr>"))
    return environment


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    # Cc control, Cf format (direction marks, zero widths), Cs lone surrogates, Co private use, Zl/Zp separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character
