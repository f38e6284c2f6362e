r"""Find out whether an answer is taken back after it, as in "The answer is 5. Wait, no, it is 6."

The text after the answer is read clause by clause. A clause that opens a retraction ("wait", "actually") has no effect
unless a new answer follows; one that rejects the answer ("that is wrong") takes it back even without a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_CLAUSE_END = re.compile(r"\.{3}|…|[,;:!?](?=\s|$|\*)|\.(?=\s|$|\*)|[。，！？；：\n]|\s[-–—]+\s|—|(?<=[a-z])-\s")
_MAX_CLAUSE = 300
"""Longer clauses are no retractions."""
_FILLERS = re.compile(
    r"(?:(?:and|but|so|then|thus|hence|therefore|well|oh|ah|uh|um|hmm+|ok(?:ay)?|yes|i think|i believe|you know)\b[\s,]*)+",
    re.IGNORECASE,
)
_OPENER = re.compile(
    r"(?:(?:no|nope|wait|hold on|hang on|actually|correction|oops|whoops|sorry|apologies|instead|rather|or rather|edit"
    r"|my (?:mistake|bad|apologies)|i (?:mean|meant)|on (?:second|further) thoughts?|in fact|(?:scratch|strike|forget) (?:that|it)"
    r"|i (?:was wrong|made (?:a|an) (?:\w+ )?(?:mistake|error|slip)|miscalculated|misread \w+)|make (?:that|it)"
    r"|let me (?:re-?check|reconsider|re-?think|re-?calculate|re-?compute|re-?do|re-?examine|correct|fix)\b[^,.;:\n]{0,40}"
    r"|attendez|attends|en fait|pardon|non|espera|esperen?|perd[óo]n|en realidad|nein|moment|warte|stopp?|eigentlich|korrektur"
    r"|aspetta|anzi|correzione|espere|na verdade|não|correção|corrección|нет|подожди(?:те)?|исправление|точнее)(?!\w)"
    r"|等等|等一下|不对|不，|不是|不|更正|实际上|待って|いや|訂正|잠깐만?|아니요?)\s*",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    r"(?:(?:that|this|it|(?:that|my|this|the)(?: last| previous| first)? (?:answer|result|one))(?:['’]s| is| was| must be)"
    r"(?: (?:actually|clearly|just|also))* (?:wrong|incorrect|false|a mistake|(?:not|n['’]t) (?:right|correct|true|the answer))"
    r"|(?:that|this|it) (?:isn|wasn)['’]t (?:right|correct|true)|(?:scratch|strike|forget) (?:that|it)\b"
    r"|i (?:was wrong|made (?:a|an) (?:\w+ )?(?:mistake|error|slip)|miscalculated)\b"
    r"|(?:这|那)?(?:不对|错了|是错的)|c['’]est faux|das (?:ist|war) falsch|(?:eso )?(?:no es correcto|es incorrecto)|это неверно"
    r"|è sbagliato|está errado)",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"(?:if|when|unless|suppose|had|without)\b", re.IGNORECASE)
_CONFIRMED = re.compile(
    r"(?:it|that|this|the answer|everything)(?:['’]s| is| was)(?: (?:indeed|actually|in fact|really))* "
    r"(?:right|correct|fine|true)\b|\bchecks out\b|\bno mistake\b",
    re.IGNORECASE,
)
_ANSWER = r"(?:(?:answer|result|value|solution|total|respuesta|r[ée]ponse|resultado|r[ée]sultat|antwort|ergebnis|risposta|risultato|resposta|ответ))"
_SUBJECT = rf"(?:it|that|this|[a-z]|(?:(?:the|my|la|le|el|die|das|il|o|a) )?(?:(?:correct|right|final|real|actual|true|new) ){{0,2}}{_ANSWER}|es|das|это|ce)"
_COPULA = (
    r"(?:['’]s|\s+(?:is|was|equals|becomes|should be|must be|would be|ought to be|has to be|ist|est|es|è|é|lautet|sollte|равен)"
    r"(?!\w)|\s*=|\s*—)"
)
_ADVERBS = (
    r"(?:\s*(?:actually|really|instead|rather|in fact|indeed|then|therefore|thus|just|exactly|equal to|simply)\b)*"
)
_RESTATED = re.compile(
    rf"(?:{_SUBJECT}{_COPULA}{_ADVERBS}|c['’]est|(?:it )?(?:should|must|would) be|i (?:get|mean|meant)|make (?:that|it)|(?:is|es|est|è|é|ist)(?=\s)"
    r"|(?:正确)?(?:答案)?(?:应该|应)?(?:是|为)|(?:正しくは|正解は)|它是)\s*",
    re.IGNORECASE,
)
_INSISTENT = re.compile(rf"{_SUBJECT}\s+should\s+(?:be|have been)\s*|(?:答案)?应该?是\s*", re.IGNORECASE)
"""A restatement that is a retraction without an opener."""
_VALUE = re.compile(
    r"[*_`\"]{0,3}(?:[-+−]?\s*[\d.$\\¥€£(\[{√]\S*.*|\(?[A-J]\)?)$",
    re.DOTALL,
)
_NOT_THE_VALUE = re.compile(r"\b(?:of|than|less|more|times|that|which|if|when|because|not)\b", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-zÀ-ÿ]+(?: [A-Za-zÀ-ÿ]+){0,2}")
_NO_ANSWERS = re.compile(
    r"(?:(?:in|not|n)\s*)?(?:correct|right|fine|true|false|wrong|ok(?:ay)?|good|done|possible|clear|easy|so|worth)\b.*",
    re.IGNORECASE,
)


class Retraction(NamedTuple):
    """start: where the new answer begins in the text, or -1 if the answer was only rejected."""

    start: int


def retraction(text: str, end: int, of_words: bool) -> Retraction | None:
    """The last retraction in ``text`` of an answer that ends at ``end``, or None.

    of_words: the answer is in words, so the new one may be too.

    >>> text = "The answer is 5. Wait, no, it is 6."
    >>> found = retraction(text, 15, of_words=False)
    >>> text[found.start:], retraction("It is 5. Wait: 2 + 3 = 5. Yes, that is right.", 7, of_words=False)
    ('6.', None)
    """
    found: Retraction | None = None
    opened = supposed = False
    for start, clause in _clauses(text, end):
        position = _after(_FILLERS, clause, 0)
        # "If you got 6, that is wrong" rejects another answer.
        rejected = None if supposed else _REJECTED.match(clause, position)
        supposed = _CONDITION.match(clause, position) is not None
        while opener := _OPENER.match(clause, position):
            opened = True
            position = _after(_FILLERS, clause, opener.end())
            rejected = rejected or _REJECTED.match(clause, position)
        if rejected:
            found, opened = Retraction(-1), True
            continue
        if found == Retraction(-1) and _CONFIRMED.search(clause):
            found, opened = None, False
            continue
        insistent = _INSISTENT.match(clause, position)
        if not opened and not insistent:
            continue
        restated = insistent or _RESTATED.match(clause, position)
        value_at = restated.end() if restated else position
        if _is_value(clause[value_at:], of_words and restated is not None):
            found = Retraction(start + value_at)
    return found


def _clauses(text: str, position: int) -> Iterator[tuple[int, str]]:
    """The clauses of ``text`` after ``position``, with their starts; long ones are left out."""
    while position < len(text):
        stop = _CLAUSE_END.search(text, position)
        end = stop.start() if stop else len(text)
        clause = text[position:end] if end - position <= _MAX_CLAUSE else ""
        start = position + len(clause) - len(clause.lstrip(" \t*_>"))
        clause = clause.strip(" \t*_>")
        if clause:
            yield start, clause
        position = stop.end() if stop else len(text)


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _is_value(clause: str, of_words: bool) -> bool:
    """Whether the rest of a clause is an answer and nothing else."""
    if of_words and _WORDS.fullmatch(clause):
        return _NO_ANSWERS.fullmatch(clause) is None
    if not _VALUE.match(clause) or _NOT_THE_VALUE.search(clause):
        return False
    outside = re.sub(r"\$[^$]*\$|\\\(.*?\\\)|\\[a-zA-Z]+", " ", clause)
    return len(re.findall(r"[^\W\d_]{2,}", outside)) <= 4 and not re.search(r"\d\s*[-+*/=<>]\s*\d.*=", outside)
