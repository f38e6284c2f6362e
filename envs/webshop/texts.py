"""Cleaning texts of product files, and finding the visible strings of a page.

A product file may contain any text. The shop shows it unchanged, including white space, except that it removes
invisible and reordering characters and cuts long texts.
"""

from __future__ import annotations

import re

# Longer texts are cut. Real rows are shorter; a hostile row must not produce an unreadable page.
MAX_NAME_LENGTH = 1_000
MAX_TEXT_LENGTH = 20_000
MAX_OPTION_LENGTH = 200
MAX_BULLETS = 100
MAX_OPTION_NAMES = 30
MAX_OPTION_VALUES = 1_000

# Control characters other than white space, reordering marks, lone surrogates, non-characters.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_CONTROL_SPACES = re.compile("[\x0b\x1c-\x1f\x85]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_MARKUP_SPACES = "\x20\x0a\x09\x0c\x0d"


def clean(text: str, max_length: int = MAX_TEXT_LENGTH) -> str:
    """``text`` without invisible characters, with runs of white space replaced by one space, cut to ``max_length``.

    >>> clean(" two\\x00\\n\\u202ewords ")
    'two words'
    """
    text = text[: 4 * max_length]
    return " ".join(_INVISIBLE.sub("", text).split())[:max_length].rstrip()


def tidy(text: str, max_length: int = MAX_TEXT_LENGTH) -> str:
    """``text`` without invisible characters, cut to ``max_length``; white space is kept.

    The result passes unchanged through HTML, a URL and a browser's text nodes, so every way of showing a page shows
    the same characters.

    >>> tidy(" two \\x00\\n\\u202ewords ")
    ' two \\nwords '
    """
    if len(text) <= max_length and _INVISIBLE.search(text) is None and _CONTROL_SPACES.search(text) is None:
        return text
    return _CONTROL_SPACES.sub(" ", _INVISIBLE.sub("", text[: 4 * max_length]))[:max_length]


def tidy_all(texts: tuple[str, ...], max_length: int = MAX_TEXT_LENGTH) -> tuple[str, ...]:
    """:func:`tidy` applied to each text; empty results are left out."""
    return tuple(text for text in (tidy(text, max_length) for text in texts) if text)


def without_surrogates(text: str) -> str:
    """``text`` without lone surrogates, which files and tokenizers cannot store."""
    return text if text.isascii() else _SURROGATES.sub("", text)


def visible(text: str) -> str | None:
    """The string that a reader of the page gets for ``text`` between two tags; None if there is none.

    Follows Beautiful Soup, with which the published environment reads its pages: white space alone becomes one space,
    or, if it contains a line break, one line break, which the published environment does not show.

    >>> visible("a  b "), visible("  "), visible(" \\n "), visible("")
    ('a  b ', ' ', None, None)
    """
    if text.strip(_MARKUP_SPACES):
        return text
    return None if not text or "\n" in text else " "
