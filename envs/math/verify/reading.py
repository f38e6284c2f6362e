r"""Reading an answer: from the text between the braces of a box to what it says."""

from __future__ import annotations

import re
from fractions import Fraction

from gagpo.envs.math.verify import normalise
from gagpo.envs.math.verify.answers import Answer, Choice, Formula, Number, Sequence, Words
from gagpo.envs.math.verify.extract import MAX_ANSWER
from gagpo.envs.math.verify.numerals import (
    CLOSING,
    FUNCTION,
    NAME,
    NUMBER_WORDS,
    OPENING,
    enclosed,
    named_number,
    short_name,
)

MAX_ITEMS = 64
"""Most items of a sequence that is compared item by item."""
MAX_DEPTH = 16
"""Deepest nesting of brackets of any kind."""

_BARE_INTEGER = re.compile(r"-?\d{1,300}", re.ASCII)
_TUPLE_NAME = re.compile(r"^\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z]){1,5}\s*\)\s*(?:=|\\in(?![a-zA-Z]))\s*(?=\()")
_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*:?\s*)?(?:\((?P<a>[A-Ja-j])\)|(?P<b>[A-J])(?P<mark>[).:])?)(?P<rest>.*)",
    re.DOTALL,
)
_SET_BUILDER = re.compile(r"\\\{\s*[a-zA-Z]\s*(?:\\in[^|:]{1,40}?)?(?:\\mid(?![a-zA-Z])|[|:])\s*(.+?)\s*\\\}")
_JOINT = re.compile(r"\s(?:and|or)\s|;|\\cup(?![a-zA-Z])")
_TIME = re.compile(r"\d{1,2}:\d{2}\s*(?:[ap]\.?\s?m\.?)?", re.IGNORECASE | re.ASCII)


class Unreadable(ValueError):
    """An answer that is empty, too long, nested too deep, or whose braces do not match."""


def read(answer: str) -> Answer:
    r"""What ``answer`` says; :class:`Unreadable` when it says nothing.

    >>> read(r"$\frac{1}{2}$").value, read("50%").percent, read("(1, 2)").ordered
    (Fraction(1, 2), True, True)
    >>> read(r"\text{Monday}"), read(r"y = 2x + 1")
    (Words(text='monday'), Formula(latex='2x + 1', name='y'))
    """
    if len(answer) > MAX_ANSWER:
        raise Unreadable(f"longer than {MAX_ANSWER} characters")
    if _BARE_INTEGER.fullmatch(answer):  # by far the most frequent answer needs no tidying
        return Number(Fraction(int(answer)))
    text = normalise.latex(answer)
    if not text:
        raise Unreadable("empty")
    _check_brackets(text)
    return _read(text, depth=0)


def _read(text: str, depth: int) -> Answer:
    plain = normalise.plain(text)
    if not plain:
        raise Unreadable("empty")
    number = named_number(plain)
    if number is not None:
        return number
    choice = _choice(plain)
    if choice is not None:
        return choice
    if _TIME.fullmatch(plain) or normalise.is_text(text):
        return _words(plain)
    if depth < 4:
        found = _sequence(text, depth)
        if found is not None:
            return found
    if _looks_like_words(plain):
        return _words(plain)
    name = NAME.match(text)
    if name and "=" not in text[name.end() :] and text[name.end() :]:
        return Formula(text[name.end() :], short_name(name["name"]))
    return Formula(text)


def _words(plain: str) -> Words | Number:
    text = normalise.words(plain)
    if text in NUMBER_WORDS:
        return Number(Fraction(NUMBER_WORDS[text]))
    return Words(text)


def _looks_like_words(plain: str) -> bool:
    """No formula: only letters, spaced numbers and punctuation, with a word of three letters that has a vowel."""
    if re.search(r"[\\^_=<>+*/|{}]|\d[a-zA-Z]|[a-zA-Z]\d", plain) or FUNCTION.search(plain.lower()):
        return False
    return any(len(word) >= 3 and set("aeiouyAEIOUY") & set(word) for word in re.findall(r"[^\W\d_]+", plain))


def _choice(plain: str) -> Choice | None:
    match = _CHOICE.fullmatch(plain)
    if match is None:
        return None
    letter, rest = match["a"] or match["b"], match["rest"].strip()
    marked = bool(match["a"] or match["mark"]) or match.start("b") > 0
    if rest and (not marked or re.match(r"(?:and|or)\b|[-+*/^=<>,;_&(\\]", rest)):
        return None  # f(x), (a) + b, A and B, (A), (B)
    if rest and re.search(r"\(?\b[A-E]\b\)", rest):
        return None  # more than one letter is no choice
    return Choice(letter.upper())


def _sequence(text: str, depth: int) -> Answer | None:
    if r"\pm" in text and text.count(r"\pm") == 1:
        return Sequence(tuple(_read(_tidy(text.replace(r"\pm", sign)), depth + 1) for sign in "+-"))
    if described := _SET_BUILDER.fullmatch(text):
        return _read(described[1], depth + 1)
    name = NAME.match(text)
    body = text[name.end() :] if name and text[name.end() :].lstrip().startswith(("(", "[", r"\{")) else text
    body = _TUPLE_NAME.sub("", body)
    unions = _split(body, cup=True)
    if len(unions) > 1:
        return Sequence(tuple(_read(part, depth + 1) for part in unions), r"\cup", r"\cup")
    opening, closing, inner = _brackets(body)
    parts = _split(inner)
    if len(parts) == 1:
        if not opening or opening == "|":
            return None
        item = _read(parts[0], depth + 1)
        return Sequence((item,), opening, closing) if opening == r"\{" else item
    if len(parts) > MAX_ITEMS or not all(part.strip() for part in parts):
        return None
    return Sequence(tuple(_read(part.strip(), depth + 1) for part in parts), opening, closing)


def _tidy(text: str) -> str:
    return re.sub(r"^\s*\+\s*", "", text)


def _brackets(text: str) -> tuple[str, str, str]:
    """The brackets around the whole of ``text``, empty when there are none, and what is inside."""
    text = text.strip()
    if text.startswith(r"\{") and text.endswith(r"\}") and r"\}" not in text[2:-2]:
        return r"\{", r"\}", text[2:-2]
    if text.startswith("{") and text.endswith("}") and enclosed(text):
        return r"\{", r"\}", text[1:-1]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and enclosed(text):
        return text[0], text[-1], text[1:-1]
    return "", "", text


def _split(text: str, cup: bool = False) -> list[str]:
    """Split at the commas, semicolons, ``and`` and ``or`` (or only at unions) that are outside all brackets."""
    wrapped = re.sub(r"\\text\s*\{\s*(and|or)\s*,?\s*\}", r" \1 ", text)
    wrapped = re.sub(r",?\s+(and|or)\s+", r" \1 ", wrapped)
    parts, depth, start, i = [], 0, 0, 0
    while i < len(wrapped):
        character = wrapped[i]
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0 and character in ",; \\":
            joint = _JOINT.match(wrapped, i)
            is_union = joint is not None and joint[0].startswith(r"\cup")
            if (cup and is_union) or (not cup and (character == "," or (joint is not None and not is_union))):
                parts.append(wrapped[start:i])
                i = joint.end() if joint is not None else i + 1
                start = i
                continue
        i += 1
    return [*parts, wrapped[start:]]


def _check_brackets(text: str) -> None:
    """Braces must match; round and square brackets need not (``B) 12``, half-open intervals). Depth is bounded."""
    braces = depth = 0
    escaped = False
    for character in text:
        step = (character in OPENING) - (character in CLOSING)
        depth = max(0, depth + step)
        if character in "{}" and not escaped:
            braces += step
        escaped = character == "\\" and not escaped
        if braces < 0:
            break
        if depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")
    if braces:
        raise Unreadable("its braces do not match")
