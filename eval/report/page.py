"""The HTML of a report: templates that escape everything, and texts made safe to read. One file, no script."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

LONGEST_TEXT = 6000  # characters of one text; a model may answer with a hundred thousand


def text(value: object, longest: int = LONGEST_TEXT) -> Markup:
    """Any text as safe HTML: markup escaped, invisible and direction-changing characters made visible, length capped.

    >>> str(text("<b>" + chr(27) + chr(0x202e)))
    '&lt;b&gt;\\\\x1b\\\\u202e'
    """
    whole = value if isinstance(value, Markup) else str(value)
    if isinstance(whole, Markup):  # shown already
        return whole
    shown = "".join(map(_visible, whole[:longest]))
    more = len(whole) - longest
    rest = Markup('<span class="more"> … {} more characters</span>').format(f"{more:,}") if more > 0 else Markup("")
    return escape(shown) + rest


def render(template: str, **values: Any) -> Markup:
    """One of the templates, filled in; a missing value is an error."""
    return Markup(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gagpo.eval.report", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["shown"] = text
    # Long names of task types may break at their underscores.
    environment.filters["breakable"] = lambda value: Markup(str(value).replace("_", "_<wbr>"))
    return environment


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    # Cc control, Cf format (direction marks, zero widths), Cs lone surrogates, Co private use, Zl/Zp separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character
