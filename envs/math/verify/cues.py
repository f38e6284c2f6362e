r"""Words that mark a final answer, in English, French and Chinese.

``STATED`` finds "the answer is" and its counterparts, ``HEADED`` a heading such as ``### Answer`` with the answer on
the next line, ``RESULT`` weaker nouns ("the result is"), which mark an answer only at the end of a response, and
``LABELLED`` the label ``A:``, which marks one only in the last line. In each match, the group ``mark`` is the space in
front of the answer.
"""

from __future__ import annotations

import re

_SPACE = r"[ \t\u00a0\u202f]"
_EMPHASIS = r"[*_]{0,3}"
_ANSWER = r"answers?|ans\.?(?=\s*[:=])"
_RESULT = r"(?:final )?results?|(?:final )?solutions?|roots|final value"
_IS = (
    r"(?:is|are|was|were|equals|(?:would|should|must) be|(?:comes out|turns out|works out) to(?: be)?)"
    r"(?:[ \t]+(?:simply|therefore|thus|just|exactly|then|indeed|equal to)\b)*"
)
_FRENCH_ANSWER = r"r[ée]ponse(?: (?:finale|correcte|exacte|est donc))?"
_FRENCH_RESULT = r"r[ée]sultat(?: final)?|solution(?: finale)?"
_FRENCH_IS = r"est(?: donc)?|sera(?:it)?|vaut|[ée]gale?"
# Without spaces between words; the verb may be left out before a colon.
_CHINESE_ANSWER = r"(?:最终|最後|最后|正确|正確)?的?答案|(?<![一-鿿])答(?=\s*[:：])|故选|故選|(?:因此|所以)?应选"
_CHINESE_RESULT = r"(?:最终|最後|最后|計算|计算)?(?:结果|結果)"
_CHINESE_IS = r"(?:应该|应|應該|應|就|即)?(?:是|为|為|等于|等於|选|選)"
_AFTER_NOUN = rf"{_EMPHASIS}(?:{_SPACE}*[(（][^()（）\n]{{1,30}}[)）])?"


def _statements(english: str, french: str, chinese: str) -> re.Pattern[str]:
    """Noun and verb, or noun and colon; verbs only after nouns of their language."""
    western = "|".join(
        rf"(?:{noun}){_AFTER_NOUN}(?:{_SPACE}+(?:{verb})(?!\w){_SPACE}*[:：]?|{_SPACE}*[:：=—–])"
        for noun, verb in ((english, _IS), (french, _FRENCH_IS))
    )
    to = rf"(?:{english})\**{_SPACE}+to[ \t][^.\n]{{1,60}}?[ \t](?:{_IS})(?!\w){_SPACE}*:?"
    eastern = rf"(?:{chinese}){_AFTER_NOUN}{_SPACE}*(?:(?:{_CHINESE_IS}){_SPACE}*[:：]?|[:：=]|(?<=选)|(?<=選))"
    return re.compile(rf"(?:(?<!\w)(?:{to}|{western})|{eastern})(?P<mark>[ \t*}}]*)", re.IGNORECASE)


STATED = _statements(_ANSWER, _FRENCH_ANSWER, _CHINESE_ANSWER)
RESULT = _statements(_RESULT, _FRENCH_RESULT, _CHINESE_RESULT)
HEADED = re.compile(
    rf"^{_SPACE}*(?:#{{1,6}}{_SPACE}*)?{_EMPHASIS}(?:the{_SPACE}+)?(?:final{_SPACE}+)?"
    rf"(?:{_ANSWER}|{_FRENCH_ANSWER}|(?:final )?result|{_CHINESE_ANSWER})"
    rf"{_EMPHASIS}{_SPACE}*[:：]?{_EMPHASIS}{_SPACE}*$\s*(?P<mark>)",
    re.IGNORECASE | re.MULTILINE,
)
LABELLED = re.compile(
    rf"^{_SPACE}*{_EMPHASIS}A{_EMPHASIS}{_SPACE}*[:：]{_EMPHASIS}{_SPACE}*(?P<mark>)(?=\S)", re.MULTILINE
)
"""``A: 18``, as in a dialogue of questions and answers."""
_FRENCH = re.compile(rf"(?<!\w)(?:{_FRENCH_ANSWER}|r[ée]sultat|solution finale)", re.IGNORECASE)
_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?![\d,])")
_AND = re.compile(r"(?<=[\d)}$])\s*(?:(?<=\s)(?:et|ou)(?=\s)|和|与|或)\s*(?=[-\d($\\a-z])")


def translated(content: str, cue: str) -> str:
    r"""``content`` with "and" in English, and with its decimal commas marked after a French cue.

    >>> translated("3,5", "Réponse :"), translated("3,5", "Answer:"), translated("3 et 5", "Réponse :")
    ('3{,}5', '3,5', '3 and 5')
    """
    content = _AND.sub(" and ", content)
    return _COMMA.sub(r"\1{,}\2", content) if _FRENCH.search(cue) else content
