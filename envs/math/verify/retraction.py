r"""Find out whether an answer is taken back after it, as in "The answer is 5. Wait, no, it is 6."

The text after the answer is read clause by clause. A clause that opens a retraction ("wait", "actually") has no effect
unless a new answer follows; one that rejects the answer ("that is wrong") takes it back even without a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_CLAUSE_END = re.compile(
    r"\.{3}|…|[,;:!?](?=\s|$|\*|[^\x00-\x7F])|(?<=[^\x00-\x7F])[,;:!?]|\.(?=\s|$|\*)|[。，！？；：\n]|\s[-–—]+\s|—|(?<=[a-z])-\s"
)
_MAX_CLAUSE = 300
"""Longer clauses are no retractions."""


def _pattern(*parts: str) -> re.Pattern[str]:
    return re.compile("".join(parts), re.IGNORECASE)


_FILLERS = _pattern(
    r"(?:(?:and|but|so|then|thus|hence|therefore|well|oh|ah|uh|um|hmm+|ok(?:ay)?|yes)\b[\s,]*",
    r"|(?:i think|i believe|you know)\b[\s,]*)+",
)
_ERROR = r"i (?:was wrong|made (?:a|an) (?:\w+ )?(?:mistake|error|slip)|miscalculated)\b"
_DISCARD = r"(?:scratch|strike|forget) (?:that|it)\b"
_OPENER = _pattern(
    r"(?:(?:no|nope|wait|hold on|hang on|actually|correction|oops|whoops|sorry|apologies|instead|edit)\b",
    r"|(?:or )?rather\b|my (?:mistake|bad|apologies)\b|i (?:mean|meant)\b|on (?:second|further) thoughts?\b|in fact\b",
    r"|i take (?:that|it) back\b|never ?mind\b|better\b|(?:or )?(?:maybe|perhaps)\b|i change my answer\b"
    rf"|make (?:that|it)\b|{_DISCARD}|{_ERROR}|i misread \w+",
    r"|let me (?:re-?(?:check|think|calculate|compute|do|examine)|reconsider|correct|fix)\b[^,.;:\n]{0,40}",
    # French, Spanish, German, Italian, Portuguese, Russian
    r"|(?:attendez|attends|en fait|pardon|non|espera|esperen?|perd[óo]n|en realidad|nein|moment|warte|stopp?)\b",
    r"|(?:eigentlich|korrektur|aspetta|anzi|correzione|espere|na verdade|não|correção|corrección)\b",
    r"|(?:нет|подожди(?:те)?|исправление|точнее)\b",
    # Chinese, Japanese, Korean
    r"|等等|等一下|不对|不，|不是|不|更正|实际上|待って|いや|訂正|잠깐만?|아니요?)\s*",
)
_WRONG = r"(?:wrong|incorrect|false|a mistake|(?:not|n['’]t) (?:right|correct|true|the answer))"
_REJECTED = _pattern(
    r"(?:(?:that|this|it|(?:that|my|this|the)(?: last| previous| first)? (?:answer|result|one))",
    rf"(?:['’]s| is| was| must be)(?: (?:actually|clearly|just|also))* {_WRONG}",
    rf"|(?:that|this|it) (?:isn|wasn)['’]t (?:right|correct|true)|{_DISCARD}|{_ERROR}",
    r"|(?:这|那)?(?:不对|错了|是错的)|c['’]est faux|das (?:ist|war) falsch|(?:eso )?(?:no es correcto|es incorrecto)",
    r"|это неверно|è sbagliato|está errado)",
)
_CONDITION = _pattern(r"(?:if|when|unless|suppose|had|without)\b")
_CONFIRMED = _pattern(
    r"(?:it|that|this|the answer|everything)(?:['’]s| is| was)(?: (?:indeed|actually|in fact|really))* ",
    r"(?:right|correct|fine|true)\b|\bchecks out\b|\bno mistake\b",
)
_ARTICLES = r"(?:(?:the|my|la|le|el|die|das|il|o|a) )?(?:(?:correct|right|final|real|actual|true|new) ){0,2}"
_NOUN = (
    r"(?:answer|result|value|solution|total|respuesta|r[ée]ponse|resultado|r[ée]sultat|antwort|ergebnis|risposta|risultato"
    r"|resposta|ответ)"
)
_SUBJECT = rf"(?:it|that|this|[a-z]|{_ARTICLES}{_NOUN}|es|das|это|ce)"
_VERB = r"(?:is|was|equals|becomes|(?:should|must|would|ought to|has to) be|ist|est|es|è|é|lautet|sollte|равен)(?!\w)"
_ADVERBS = (
    r"(?:\s*(?:actually|really|instead|rather|in fact|indeed|then|therefore|thus|just|exactly|equal to|simply)\b)*"
)
_RESTATED = _pattern(
    rf"(?:{_SUBJECT}(?:['’]s|\s+{_VERB}|\s*[=—]){_ADVERBS}|(?:it )?(?:should|must|would) be",
    r"|(?:i|we) get|i (?:mean|meant)|to|make (?:that|it)|(?:is|es|est|è|é|ist)(?=\s)|c['’]est",
    r"|(?:正确)?(?:答案)?(?:应该|应)?(?:是|为)|(?:正しくは|正解は)|它是)\s*",
)
_INSISTENT = _pattern(rf"(?:it|that|this|{_ARTICLES}{_NOUN})\s+should\s+(?:be|have been)\s*|(?:答案)?应该?是\s*")
"""A restatement that is a retraction without an opener."""
_VALUE = re.compile(
    r"[*_`\"]{0,3}(?:[-+−]?\s*[\d.$\\¥€£(\[{√]\S*.*|\(?[A-J]\)?|[a-zA-Z]\w?\s*[-+*/^=]\s*[-\w(\\].{0,40})$", re.DOTALL
)
_NOT_THE_VALUE = _pattern(r"\b(?:of|than|less|more|times|that|which|if|when|because|not)\b")
_WORDS = re.compile(r"[A-Za-zÀ-ÿ]+(?: [A-Za-zÀ-ÿ]+){0,2}")
_NO_ANSWERS = _pattern(
    r"(?:(?:in|not|n)\s*)?(?:correct|right|fine|true|false|wrong|ok(?:ay)?|good|done|possible|clear|easy|so|worth)\b.*"
)
_FORMULA = re.compile(r"\$[^$]*\$|\\\([^()]*\\\)|\\[a-zA-Z]+")


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
    change: Retraction | None = None
    is_open = is_conditional = False
    for start, clause in _clauses(text, end):
        position = _after(_FILLERS, clause, 0)
        # "If you got 6, that is wrong" rejects another answer.
        rejected = None if is_conditional else _REJECTED.match(clause, position)
        is_conditional = _CONDITION.match(clause, position) is not None
        while opener := _OPENER.match(clause, position):
            is_open = True
            position = _after(_FILLERS, clause, opener.end())
            rejected = rejected or _REJECTED.match(clause, position)
        if rejected:
            change = Retraction(-1)
            is_open = True
            continue
        if change == Retraction(-1) and _CONFIRMED.search(clause):
            change = None
            is_open = False
            continue
        insistent = _INSISTENT.match(clause, position)
        if not is_open and not insistent:
            continue
        restated = insistent or _RESTATED.match(clause, position)
        value_at = restated.end() if restated else position
        if _is_value(clause[value_at:], of_words and restated is not None):
            change = Retraction(start + value_at)
    return change


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
    outside = _FORMULA.sub(" ", clause)
    return len(re.findall(r"[^\W\d_]{2,}", outside)) <= 4 and not re.search(r"\d\s*[-+*/=<>]\s*\d.*=", outside)
