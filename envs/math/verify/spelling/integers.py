r"""The free integer of a family of answers, as in ``k\pi, k \in \mathbb{Z}``."""

from __future__ import annotations

import re

_TEXT = r"(?:\\(?:text|mathrm|mbox)\s*\{)?\s*"
_INTEGER = r"\\in\s*\\mathbb\{Z\}"
_IS_INTEGER = rf"(?P<name>[a-zA-Z])\s*(?:\}}\s*)?(?:{_INTEGER}|{_TEXT}(?:is )?(?:an(?:y)? )?integer)"
_DECLARED = re.compile(
    rf"(?:[,;(]|\s|(?<=[\w}}])(?=\\text))\s*\(?{_TEXT}(?:(?:where|with|for)\b\s*)?(?:(?:all|any|every|some|each)\b\s*)?"
    rf"(?:\\forall\s*)?\}}?\s*(?:{_IS_INTEGER}|integers?\s*\}}?\s*(?P<last>[a-zA-Z]))\s*[)}}]*$"
)
_MEMBERS = re.compile(rf"\\\{{\s*(?P<member>[^|:=]+?)\s*[|:]\s*(?P<name>[a-zA-Z])\s*{_INTEGER}\s*\\\}}")
_LETTER = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]")


def family(text: str) -> tuple[str, str] | None:
    r"""A family of answers without the declaration of its free integer: as written, and with a name that all share.

    >>> family(r"x = n\pi, n \in \mathbb{Z}"), family(r"2m, m \text{ is an integer}"), family("2m")
    (('x = n\\pi', 'x = \\iota \\pi'), ('2m', '2\\iota '), None)
    """
    declaration = _MEMBERS.fullmatch(text) or _DECLARED.search(text)
    if declaration is None:
        return None
    fields = declaration.groupdict()
    name = fields.get("name") or fields["last"]
    main = fields.get("member") or text[: declaration.start()].rstrip(" ,;")
    if main.count("{") != main.count("}") or name in "xyz":
        return None  # within other text, such as "for all positive integers n", or a condition on the variable
    shared = _LETTER.sub(lambda letter: r"\iota " if letter[0] == name else letter[0], main)
    return (main, shared) if shared != main else None
