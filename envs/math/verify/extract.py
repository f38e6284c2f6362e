r"""Find the final answer in a response, by three methods in this order.

``boxed``: the last non-empty ``\boxed{...}`` (or ``\fbox``, ``\framebox``, ``\bbox``, ``\colorbox``) with matching
braces that its sentence does not deny; several boxes that only commas, "and" or "or" join are one list. If the last box
is not closed, there is none: the response was cut off.
``hashes``: the text after the last ``####``, to the end of the line.
``phrase``: the text after the last "the answer is", "final answer:", "answer =" or similar, in the languages of
:mod:`gagpo.envs.math.verify.cues`, up to a clause that explains it, or within the last ``<answer>...</answer>``; a last
line such as ``A: 18``; for a question with choices also a bold letter (``**D**``) at the end.

An answer that is taken back after it does not count; the one that replaces it does
(:mod:`gagpo.envs.math.verify.retraction`). Only the end of the response is searched, in linear time. Thoughts
(``<think>...</think>``) are never searched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gagpo.envs.math.verify import cues
from gagpo.envs.math.verify.retraction import retraction

METHODS = ("boxed", "hashes", "phrase")

TAIL = 20_000
"""Characters at the end of a response that are searched."""
MAX_ANSWER = 1_000
"""Longest answer, in characters; longer ones are ignored."""
_MAX_BOXES = 32  # per response; bounds the time for a response that repeats "\boxed" thousands of times
_MAX_BETWEEN = 60
"""Longest text between two boxes of a list."""


@dataclass(frozen=True)
class Extraction:
    """An answer as written, the method that found it, and the position of its mark in the response."""

    text: str
    method: str
    start: int


_OPTIONS = r"(?:\[[^\]\n]{0,40}\]\s*){0,2}"
_COLOUR = r"(?:\[\w{1,10}\]\s*)?\{[^{}\n]{1,40}\}\s*"
_BOX = re.compile(
    rf"\\(?:(?:[bB]oxed|fbox)\s*|(?:framebox|bbox)\s*{_OPTIONS}|colorbox\s*{_COLOUR}|fcolorbox\s*{_COLOUR}{_COLOUR})"
)
_BOX_NAMES = (r"\boxed", r"\Boxed", r"\fbox", r"\framebox", r"\bbox", r"\colorbox", r"\fcolorbox")
# "The answer is not \boxed{5}", "x \ne \boxed{5}", "\boxed{5} is wrong".
_DENIED = re.compile(
    r"(?:(?<!or )(?<!why )(?:\bnot|\bnever|\bcannot|n['’]t)"
    r"(?:\s+(?:be|equal(?:s| to)?|simply|just|actually|really))*\s*:?"
    r"|\\not\s*=|\\neq?(?![a-zA-Z])|≠)(?:[\s$*{]|\\[(\[])*$",
    re.IGNORECASE,
)
_NOT_RIGHT = r"(?:right|correct|the (?:final |right |correct )?answer)"
_DENIED_AFTER = re.compile(
    rf"(?:[\s$*}}]|\\[)\]])*(?:(?:is|was|would be)\s+(?:wrong|incorrect|false|not {_NOT_RIGHT})"
    rf"|(?:isn|wasn)['’]t {_NOT_RIGHT})\b",
    re.IGNORECASE,
)
_BEFORE_BOX = 60  # characters in which a denial is looked for
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
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
_JOINT = re.compile(r"\s*(?:,\s*)?(?:and|or|,|et|und|y|和|或)\s*(?=[$\\])")
_DOUBT = re.compile(r",\s+(?:oh,? |oops,? )?(?:no|wait|sorry|i mean|correction)\b(?=[,:. ])", re.IGNORECASE)
_TRAILING_UNIT = re.compile(r"\s*(\\?%|[a-zA-Z ]{1,30})(?=[.,\n]|$)")
_NUMERIC = re.compile(r"[-+−]?\s*(?:[\d.$\\¥€£(\[{√]|[a-zA-Z]\s*=|\(?[A-J]\)?$)")
"""The start of an answer that is not prose."""
_MORE = re.compile(r"[\d\\$]")
_TOKEN = re.compile(r"[-\w.]+")
# A stop before a space ends a sentence; a decimal point does not, nor does "sq. units".
_SENTENCE_END = re.compile(r"(?<!\bsq)\.{0,2}[.!?](?=\s|$)|…|[。！？]|\n")
# Between two boxes of one list, with the name of the next: ``\boxed{3} and x = \boxed{7}``.
_SPACES = r"(?:[\s$]|\\[()\[\]]|\\q?quad(?![a-zA-Z])|\\[,;: ])*"
_OR = r"(?:\\text\s*\{\s*)?(?:and|or|y|et|und|oder|ou|和|或)(?:\s*\})?"
_BETWEEN_BOXES = re.compile(
    rf"{_SPACES}(?:[,;、，；]{_SPACES}(?:{_OR})?|{_OR}){_SPACES}(?:[a-zA-Z](?:_\w|_\{{\w+\}})?\s*=\s*)?"
)
_BOX_NAME = re.compile(r"([a-zA-Z](?:_\w|_\{\w+\})?)\s*=\s*$")


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
        answer = _FINDERS[method](tail) or (_last_resort(tail, choices) if method == "phrase" else None)
        if answer is not None:
            return _unless_retracted(tail, answer, method, offset)
    return None


class _Candidate(NamedTuple):
    """An answer, the start of its mark, and its end in the text that was searched."""

    text: str
    start: int
    end: int


def _unless_retracted(tail: str, answer: _Candidate, method: str, offset: int) -> Extraction | None:
    change = retraction(tail, answer.end, of_words=not re.search(r"\d", answer.text))
    if change is None:
        return Extraction(answer.text, method, offset + answer.start)
    if change.start < 0:
        return None
    content, _ = _content(tail, change.start, "")
    if content:
        return Extraction(content, "phrase", offset + change.start)
    return None


def _last_resort(tail: str, choices: bool) -> _Candidate | None:
    """A bold letter, or the result that the end of a response states, or its last line if that is ``A: 18``."""
    letter = _bold_choice(tail) if choices else None
    if letter:
        return letter
    last_line = tail.rstrip().rfind("\n") + 1
    for pattern, begin in ((cues.RESULT, 0), (cues.LABELLED, last_line)):
        mentions = list(pattern.finditer(tail, begin))
        answer = _after_cue(tail, mentions[-1]) if mentions else None
        if answer is None or not _NUMERIC.match(answer.text) or _MORE.search(tail, answer.end):
            continue  # prose, or an intermediate result
        if choices and pattern is cues.LABELLED and len(answer.text.strip("()")) > 1:
            continue  # the letter A and the value it stands for
        return answer
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
    passages = []
    position = 0
    for begin, end in spans:
        passages += [response[position:begin], "\n" * (end - begin)]
        position = end
    return "".join(passages) + response[position:]


def _boxed(text: str) -> _Candidate | None:
    """The last box, or the last boxes if they form a list."""
    last = _last_box(text, len(text))
    if last is None:
        return None
    boxes = [last]
    while len(boxes) < _MAX_BOXES:
        before = _last_box(text, boxes[0].start)
        if before is None:
            break
        # A nested box ends after the next one starts.
        gap = boxes[0].start - before.end
        if not 0 <= gap <= _MAX_BETWEEN or not _BETWEEN_BOXES.fullmatch(text, before.end, boxes[0].start):
            break
        boxes.insert(0, before)
    if len(boxes) == 1:
        return last
    names = [_BOX_NAME.search(text, max(0, box.start - 20), box.start) for box in boxes]
    items = [f"{name[1]} = {box.text}" if name else box.text for name, box in zip(names, boxes, strict=True)]
    joined = ", ".join(items if all(names) else [box.text for box in boxes])
    if len(joined) <= MAX_ANSWER:
        return _Candidate(joined, boxes[0].start, last.end)
    return last


def _last_box(text: str, end: int) -> _Candidate | None:
    """The last box that starts before ``end``, is not empty and is not denied by its sentence.

    There is none if the last box is not closed: the response was cut off within its answer.
    """
    for _ in range(_MAX_BOXES):
        start = max(text.rfind(name, 0, end) for name in _BOX_NAMES)
        if start < 0:
            return None
        match = _BOX.match(text, start)
        content, position = _group(text, match.end()) if match else (None, start)
        if content is None and match and text.startswith("{", match.end()) and end == len(text):
            return None
        if content is not None and content.strip():
            denied = _DENIED.search(text, max(0, start - _BEFORE_BOX), start) or _DENIED_AFTER.match(text, position)
            if not denied:
                return _Candidate(content.strip(), start, position)
        end = start
    return None


def _group(text: str, position: int) -> tuple[str | None, int]:
    """The content of the brace group (or the token) at ``position`` and its end; None if it is not closed."""
    if not text.startswith("{", position):
        match = _TOKEN.match(text, position)
        if match and len(match[0]) <= MAX_ANSWER:
            return match[0], match.end()
        return None, position
    depth = 0
    i = position
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
                return text[position + 1 : i], i + 1
        i += 1
    return None, position


def _hashes(text: str) -> _Candidate | None:
    start = text.rfind("####")
    match = _HASHES.match(text, start) if start >= 0 else None
    content = match[1].strip() if match else ""
    if cues.HEADED.fullmatch(text, start, match.end() if match else start):
        return None  # "#### Answer" is a heading
    if match and content and len(content) <= MAX_ANSWER:
        return _Candidate(content, start, match.end())
    return None


def _phrase(text: str) -> _Candidate | None:
    last = _last_cue(text)
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(0, end))
    if start >= 0 and (last is None or last.start() < end):
        tagged = text[start + len("<answer>") : end].strip()
        inner = _phrase(tagged)
        if 0 < len(tagged) <= MAX_ANSWER:
            return _Candidate(inner.text if inner else tagged, start, end)
        return None
    return _after_cue(text, last) if last is not None else None


def _last_cue(text: str) -> re.Match[str] | None:
    """The last statement or heading of an answer that is followed by text."""
    last: re.Match[str] | None = None
    for match in cues.STATED.finditer(text):
        if text[match.end() :].strip():
            last = match
    for match in cues.HEADED.finditer(text, last.end() if last else 0):
        if _is_brief(text[match.end() :]):
            last = match
    return last


def _after_cue(text: str, cue: re.Match[str]) -> _Candidate | None:
    before = text[text.rfind("\n", 0, cue.start()) + 1 : cue.start()]
    content, end = _content(text, cue.start("mark"), before)
    content = cues.translated(content, cue[0]).strip()
    return _Candidate(content, cue.start(), end) if content else None


def _content(text: str, position: int, before: str) -> tuple[str, int]:
    """The answer at ``position``, up to the end of its formula or sentence, and where that is.

    before: the text in front of its mark on the same line.
    """
    following = text[position : position + MAX_ANSWER]
    start = position + len(following) - len(following.lstrip())
    following = text[start : start + MAX_ANSWER]
    emphasis = _EMPHASIS.match(following)
    visible = _EMPHASIS.sub(r"\2", following).lstrip(" \t*}\n")
    formula = _MATH.match(visible)
    if formula is not None:
        content = next(group for group in formula.groups() if group is not None)
        unit = _TRAILING_UNIT.match(visible, formula.end())
        end = formula.end()
        if unit and formula["d"] is None:
            content += _conclusion(f"0{unit[0]}")[1:]
            end = unit.end()
        while True:
            joint = _JOINT.match(visible, end)
            next_formula = _MATH.match(visible, joint.end()) if joint else None
            if next_formula is None:
                break
            content = f"{content}, {next(group for group in next_formula.groups() if group is not None)}"
            end = next_formula.end()
    else:
        stop = _SENTENCE_END.search(visible)
        end = stop.start() if stop else len(visible)
        if doubt := _DOUBT.search(visible, 1, end):  # "5, no, 6"
            end = doubt.start()
        content = _conclusion(_within(before, visible[:end]))
    # Emphasis and space were dropped in front of the answer, so the end is at least this far.
    end = start + end + (len(emphasis[1]) if emphasis else 0)
    return content.strip().strip("*").strip(), min(end, len(text))


def _is_brief(text: str) -> bool:
    """Whether the first line of ``text`` may be an answer rather than the start of an explanation."""
    line = text.strip().partition("\n")[0]
    tokens = re.findall(r"[^\W\d_]{2,}", _MATH.sub(" ", line))
    return bool(line) and len(tokens) <= 6


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


def _bold_choice(text: str) -> _Candidate | None:
    start = text.rfind("**", 0, max(0, text.rfind("**")))
    match = _BOLD_CHOICE.match(text, start) if start >= 0 else None
    if match:
        return _Candidate(match[1].strip(), start, match.end())
    return None


_FINDERS = {"boxed": _boxed, "hashes": _hashes, "phrase": _phrase}
