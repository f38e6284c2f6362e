r"""Find the final answer in a response, by three methods in this order.

``boxed``: the last non-empty ``\boxed{...}`` (or ``\fbox``) with matching braces.
``hashes``: the text after the last ``####``, to the end of the line.
``phrase``: the text after the last "the answer is", "final answer:", "answer =" or similar, up to a clause that
explains it, or within the last ``<answer>...</answer>``; for a question with choices also a bold letter (``**D**``) at
the end.

Only the end of the response is searched, in linear time. Thoughts (``<think>...</think>``) are never searched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

METHODS = ("boxed", "hashes", "phrase")

TAIL = 20_000
"""Characters at the end of a response that are searched."""
MAX_ANSWER = 1_000
"""Longest answer, in characters; longer ones are ignored."""
_MAX_BOXES = 32


@dataclass(frozen=True)
class Extraction:
    """An answer as written, the method that found it, and the position of its mark in the response."""

    text: str
    method: str
    start: int


_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_PHRASE = re.compile(
    r"\banswer\**(?:[ \t]+(?:to[ \t][^.\n]{1,60}?[ \t])?(?:is|was|equals|(?:would|should|must)[ \t]+be)\b[ \t]*:?"
    r"|[ \t]*[:=])(?P<mark>[ \t*}]*)",
    re.IGNORECASE,
)
_THOUGHT = re.compile(r"<(?P<end>/?)(?:think(?:ing)?|thoughts?|reasoning)\s*>", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<![^\s(])(\*{1,3}|__)(?=\S)([^*\n]+?)(?<=\S)\1(?!\w)")
_REASON = re.compile(r"(?<=\S)(?:,|;)?\s+(?:because|since|as|so that)\b")
_REMARK = re.compile(
    r"(?<=\S)(?:(?:,|;)?\s+(?:so|hence|thus|therefore|which|where|and (?:we|this|that|it|I|so|hence|thus|therefore))\b"
    r"|\s*(?:--|[–—])\s+(?=[a-zA-Z]{2}))(?=\D*$)"  # a number in the remark could be the answer
)
_CLOSING = (("\\[", "\\]"), ("\\(", "\\)"), ("(", ")"), ("[", "]"), ("{", "}"))
_BOLD_CHOICE = re.compile(r"\*\*\s*(\(?[A-J](?:\)|[.:]|\b)[^*\n]{0,80})\*\*[.\s]*$")
_MATH = re.compile(r"\$\$(?P<a>.+?)\$\$|\$(?P<b>(?:\\.|[^$\n\\])+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL)
_TRAILING_UNIT = re.compile(r"\s*(\\?%|[a-zA-Z ]{1,30})(?=[.,\n]|$)")
_TOKEN = re.compile(r"[-\w.]+")
# A stop before a space ends a sentence; a decimal point does not, nor does "sq. units".
_SENTENCE_END = re.compile(r"(?<!\bsq)[.!?](?=\s|$)|\n")


def extract(response: str, methods: Sequence[str] = METHODS, choices: bool = False) -> Extraction | None:
    r"""The final answer of ``response`` by the first of ``methods`` that finds one, or None.

    choices: the question has choices, so a bold letter at the end is an answer.

    >>> extract(r"So $\boxed{1}$, no: $\boxed{\frac{1}{2}}$.").text
    '\\frac{1}{2}'
    >>> extract("The answer is 12 apples."), extract("nothing here")
    (Extraction(text='12 apples', method='phrase', start=4), None)
    >>> extract("Hence **D**", choices=True).text, extract("Hence **D**")
    ('D', None)
    """
    offset = max(0, len(response) - TAIL)
    tail = without_thoughts(response)[offset:]
    for method in METHODS:
        if method not in methods:
            continue
        found = _FINDERS[method](tail) or (_bold_choice(tail) if choices and method == "phrase" else None)
        if found is not None:
            text, start = found
            return Extraction(text, method, offset + start)
    return None


def without_thoughts(response: str) -> str:
    """``response`` with its thoughts replaced by empty lines of the same length, so positions stay.

    A thought that is not closed extends to the end; one that was opened in the prompt begins at the start.

    >>> without_thoughts("<think>3</think>4"), without_thoughts("3</think>4"), without_thoughts("4<think>3").rstrip()
    ('\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n4', '\\n\\n\\n\\n\\n\\n\\n\\n\\n4', '4')
    """
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for tag in _THOUGHT.finditer(response):
        if not tag["end"]:
            start = tag.start() if start is None else start
        elif start is None:
            spans = [(0, tag.end())]
        else:
            spans.append((start, tag.end()))
            start = None
    if start is not None:
        spans.append((start, len(response)))
    kept, position = [], 0
    for begin, end in spans:
        kept += [response[position:begin], "\n" * (end - begin)]
        position = end
    return "".join(kept) + response[position:]


def _boxed(text: str) -> tuple[str, int] | None:
    end = len(text)
    for _ in range(_MAX_BOXES):
        start = max(text.rfind(r"\boxed", 0, end), text.rfind(r"\fbox", 0, end))
        if start < 0:
            return None
        match = _BOX.match(text, start)
        content = _group(text, match.end()) if match else None
        if content is not None and content.strip():
            return content.strip(), start
        end = start
    return None


def _group(text: str, position: int) -> str | None:
    """The content of the brace group (or the token) at ``position``; None if it is not closed."""
    if not text.startswith("{", position):
        match = _TOKEN.match(text, position)
        return match[0] if match and len(match[0]) <= MAX_ANSWER else None
    depth, i = 0, position
    limit = min(len(text), position + MAX_ANSWER + 2)
    while i < limit:
        character = text[i]
        if character == "\\":
            i += 1  # skip an escaped brace
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[position + 1 : i]
        i += 1
    return None


def _hashes(text: str) -> tuple[str, int] | None:
    start = text.rfind("####")
    match = _HASHES.match(text, start) if start >= 0 else None
    content = match[1].strip() if match else ""
    return (content, start) if content and len(content) <= MAX_ANSWER else None


def _phrase(text: str) -> tuple[str, int] | None:
    last: re.Match[str] | None = None
    for match in _PHRASE.finditer(text):
        if text[match.end() :].strip():
            last = match
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(0, end))
    if start >= 0 and (last is None or last.start() < end):
        tagged = text[start + len("<answer>") : end].strip()
        inner = _phrase(tagged)
        return (inner[0] if inner else tagged, start) if 0 < len(tagged) <= MAX_ANSWER else None
    if last is None:
        return None
    rest = text[last.start("mark") : last.end() + MAX_ANSWER]
    rest = _EMPHASIS.sub(r"\2", rest.lstrip()).lstrip(" \t*}\n")
    formula = _MATH.match(rest)
    if formula is not None:
        content = next(group for group in formula.groups() if group is not None)
        unit = _TRAILING_UNIT.match(rest, formula.end())
        if unit and formula["d"] is None:
            content += _conclusion(f"0{unit[0]}")[1:]
    else:
        stop = _SENTENCE_END.search(rest)
        before = text[text.rfind("\n", 0, last.start()) + 1 : last.start()]
        content = _conclusion(_within(before, rest[: stop.start()] if stop else rest))
    content = content.strip().strip("*").strip()
    return (content, last.start()) if content else None


def _conclusion(prose: str) -> str:
    """``prose`` without a clause at its end that explains it or remarks on it."""
    for clause in (_REASON, _REMARK):
        head = clause.split(prose, maxsplit=1)[0]
        prose = head if head.count("{") == head.count("}") else prose
    return prose


def _within(before: str, content: str) -> str:
    """``content`` up to the bracket that was opened ``before`` it on the line, as in ``(Answer: 9)``."""
    for opening, closing in _CLOSING:
        if before.count(opening) > before.count(closing):
            for end in (match.start() for match in re.finditer(re.escape(closing), content)):
                if content.count(opening, 0, end) <= content.count(closing, 0, end):
                    return content[:end]
    return content


def _bold_choice(text: str) -> tuple[str, int] | None:
    start = text.rfind("**", 0, max(0, text.rfind("**")))
    match = _BOLD_CHOICE.match(text, start) if start >= 0 else None
    return (match[1].strip(), start) if match else None


_FINDERS = {"boxed": _boxed, "hashes": _hashes, "phrase": _phrase}
