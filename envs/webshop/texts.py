"""Texts from outside: what of them is kept, and which parts of a page are a visible string.

A product file may hold anything. The shop shows it as it is, blanks included, but for characters that nobody sees or
that reorder their surroundings, and within a length that a browser and a model can read.
"""

from __future__ import annotations

import re

# Longer texts are cut. Real rows stay below; a hostile row must not make a page that no browser or model can read.
LONGEST_NAME = 1_000
LONGEST_TEXT = 20_000
LONGEST_OPTION = 200
MOST_BULLETS = 100
MOST_OPTION_NAMES = 30
MOST_OPTION_VALUES = 1_000

# Controls that are not blanks, marks that reorder the text around them, lone surrogates, non-characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_CONTROL_BLANKS = re.compile("[\x0b\x1c-\x1f\x85]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_MARKUP_BLANKS = "\x20\x0a\x09\x0c\x0d"


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """``text`` without control, reordering and unpaired characters, runs of blanks made one, cut to ``longest``.

    >>> clean(" two\\x00\\n\\u202ewords ")
    'two words'
    """
    text = text[: 4 * longest]
    return " ".join(_UNSEEN.sub("", text).split())[:longest].rstrip()


def tidy(text: str, longest: int = LONGEST_TEXT) -> str:
    """``text`` without control, reordering and unpaired characters, cut to ``longest``; its blanks are kept.

    What remains passes through HTML, a URL and a browser's text nodes unchanged, so that every way of showing a page
    shows the same characters.

    >>> tidy(" two \\x00\\n\\u202ewords ")
    ' two \\nwords '
    """
    if len(text) <= longest and _UNSEEN.search(text) is None and _CONTROL_BLANKS.search(text) is None:
        return text
    return _CONTROL_BLANKS.sub(" ", _UNSEEN.sub("", text[: 4 * longest]))[:longest]


def tidy_all(texts: tuple[str, ...], longest: int = LONGEST_TEXT) -> tuple[str, ...]:
    """Every one of ``texts``, tidy; what is nothing then is left out."""
    return tuple(text for text in (tidy(text, longest) for text in texts) if text)


def paired(text: str) -> str:
    """``text`` without lone surrogates, which no file and no tokenizer can hold."""
    return text if text.isascii() else _SURROGATES.sub("", text)


def visible(text: str) -> str | None:
    """The string that ``text`` between two tags is, None for none.

    As Beautiful Soup, through which the published environment reads its pages, has it: blanks alone are one blank, or
    with a line break among them one line break, which the published environment does not show.

    >>> visible("a  b "), visible("  "), visible(" \\n "), visible("")
    ('a  b ', ' ', None, None)
    """
    if text.strip(_MARKUP_BLANKS):
        return text
    return None if not text or "\n" in text else " "
