r"""Words that mark a final answer, by language.

``STATED`` finds "the answer is" and its counterparts, ``HEADED`` a heading such as ``### Answer`` with the answer on
the next line, ``RESULT`` weaker nouns ("the result is"), which mark an answer only at the end of a response, and
``LABELLED`` the label ``A:``, which marks one only in the last line. In each match, the group ``mark`` is the space in
front of the answer.
"""

from __future__ import annotations

import re

_SPACE = r"[ \t\u00a0\u202f]"
_EMPHASIS = r"[*_]{0,3}"

# One row a language: nouns for the answer | nouns for a result | verbs between the noun and the answer.
# European languages after English write decimals with a comma.
_LANGUAGES = {
    "en": (
        r"answers?|ans\.?(?=\s*[:=])",
        r"(?:final )?results?|(?:final )?solutions?|roots|final value",
        r"(?:is|are|was|were|equals|(?:would|should|must) be|(?:comes out|turns out|works out) to(?: be)?)"
        r"(?:[ \t]+(?:simply|therefore|thus|just|exactly|then|indeed|equal to)\b)*",
    ),
    "fr": (
        r"r[ée]ponse(?: (?:finale|correcte|exacte|est donc))?",
        r"r[ée]sultat(?: final)?|solution(?: finale)?",
        r"est(?: donc)?|sera(?:it)?|vaut|[ée]gale?",
    ),
    "es": (
        r"respuesta(?: (?:final|correcta))?",
        r"resultado(?: final)?|soluci[óo]n(?: final)?",
        r"es|ser[íi]a|ser[áa]",
    ),
    "pt": (r"resposta(?: (?:final|correta|certa))?", r"resultado(?: final)?|solu[çc][ãa]o(?: final)?", r"é|seria|será"),
    "it": (
        r"risposta(?: (?:finale|corretta|esatta|giusta))?",
        r"risultato(?: finale)?|soluzione(?: finale)?",
        r"è|e['’]|sar[àa]|sarebbe",
    ),
    "de": (
        r"(?:end)?antwort|endergebnis",
        r"ergebnis|(?:end)?l[öo]sung",
        r"ist|lautet|wäre|beträgt",
    ),
    "nl": (r"(?:eind)?antwoord", r"(?:eind)?resultaat|oplossing", r"is|luidt|zou"),
    "pl": (r"odpowied[źz]", r"wynik|rozwiązanie", r"to|jest|brzmi|wynosi"),
    "cs": (r"odpověď|odpoveď", r"výsledek|výsledok", r"je"),
    "ru": (r"ответ(?:ом)?", r"результат|решение", r"равен|есть|это|будет|является|-"),
    "uk": (r"відповідь", r"результат", r"дорівнює|є|це|-"),
    "sv": (r"(?:slut)?svar(?:et)?", r"result[ae]t(?:et)?", r"är|er"),
    "fi": (r"vastaus", r"tulos", r"on"),
    "hu": (r"(?:a )?(?:vég)?válasz", r"(?:vég)?eredmény", r"az?"),
    "ro": (r"răspuns(?:ul)?", r"rezultat(?:ul)?", r"este|e"),
    "el": (r"απάντηση", r"αποτέλεσμα", r"είναι"),
    "tr": (r"cevap|yanıt", r"sonuç", r"şudur"),
    "vi": (r"(?:câu )?trả lời|đáp (?:án|số)", r"kết quả", r"là|bằng"),
    "id": (r"jawaban(?:nya)?", r"hasil(?:nya)?", r"adalah|ialah"),
    "ar": (r"(?:ال)?(?:إجابة|اجابة|جواب)(?: النهائية| النهائي| الصحيحة)?", r"(?:ال)?نتيجة", r"هي|هو"),
    "he": (r"(?:ה)?תשובה(?: הסופית)?", r"(?:ה)?תוצאה", r"היא|הוא"),
    "hi": (r"(?:अंतिम |सही )?उत्तर|जवाब", r"परिणाम", r"है"),
}
_DECIMAL_COMMA = ("fr", "es", "pt", "it", "de", "nl", "pl", "cs", "ru", "uk", "sv", "fi", "hu", "ro", "el", "tr", "id")
# Without spaces between words; the verb may be left out before a colon.
_EASTERN_ANSWER = (
    r"(?:最终|最後|最后|正确|正確)?的?答案|(?<![一-鿿])答(?=\s*[:：])|故选|故選|(?:因此|所以)?应选|(?:正しい|最終的な)?(?:答え|解答|回答|正解)"
    r"|(?<![가-힣])(?:최종 ?)?(?:정답|답안|답변|답)"
)
_EASTERN_RESULT = r"(?:最终|最後|最后|計算|计算)?(?:结果|結果)|(?:최종 ?)?결과"
_EASTERN_VERB = r"(?:应该|应|應該|應|就|即)?(?:是|为|為|等于|等於|选|選)|は|은|는"
ENDINGS = re.compile(
    r"(?<=[\d\w}$)])\s*(?:で(?:す|ある|しょう)|だ|に?となります|になります|に?なる|입니다|이다|이에요|예요|है|dir|dır|dur)"
    r"(?=[。．.!！\s]|$)"
)
"""Verbs that follow the answer in Japanese, Korean, Hindi and Turkish."""


def _alternatives(column: int, languages: tuple[str, ...] = tuple(_LANGUAGES)) -> str:
    return "|".join(_LANGUAGES[language][column] for language in languages)


_AFTER_NOUN = rf"{_EMPHASIS}(?:{_SPACE}*[(（][^()（）\n]{{1,30}}[)）])?"


def _statements(column: int, eastern: str) -> re.Pattern[str]:
    """Noun and verb, or noun and colon; verbs only after nouns of their language."""
    rows = [
        rf"(?:{phrases[column]}){_AFTER_NOUN}(?:{_SPACE}+(?:{phrases[2]})(?!\w){_SPACE}*[:：]?|{_SPACE}*[:：=—–])"
        for phrases in _LANGUAGES.values()
    ]
    english = rf"{_LANGUAGES['en'][column]}"
    to = rf"(?:{english})\**{_SPACE}+to[ \t][^.\n]{{1,60}}?[ \t](?:{_LANGUAGES['en'][2]})(?!\w){_SPACE}*:?"
    western = rf"(?<!\w)(?:{to}|{'|'.join(rows)})"
    return re.compile(
        rf"(?:{western}|(?:{eastern}){_AFTER_NOUN}{_SPACE}*(?:(?:{_EASTERN_VERB}){_SPACE}*[:：]?|[:：=]|(?<=选)|(?<=選)))"
        r"(?P<mark>[ \t*}]*)",
        re.IGNORECASE,
    )


STATED = _statements(0, _EASTERN_ANSWER)
RESULT = _statements(1, _EASTERN_RESULT)
HEADED = re.compile(
    rf"^{_SPACE}*(?:#{{1,6}}{_SPACE}*)?{_EMPHASIS}(?:the{_SPACE}+)?(?:final{_SPACE}+)?"
    rf"(?:{_alternatives(0)}|(?:final )?result|{_EASTERN_ANSWER})"
    rf"{_EMPHASIS}{_SPACE}*[:：]?{_EMPHASIS}{_SPACE}*$\s*(?P<mark>)",
    re.IGNORECASE | re.MULTILINE,
)
LABELLED = re.compile(
    rf"^{_SPACE}*{_EMPHASIS}A{_EMPHASIS}{_SPACE}*[:：]{_EMPHASIS}{_SPACE}*(?P<mark>)(?=\S)", re.MULTILINE
)
"""``A: 18``, as in a dialogue of questions and answers."""
_COMMA_NOUN = re.compile(
    rf"(?<!\w)(?:{_alternatives(0, _DECIMAL_COMMA)}|{_alternatives(1, _DECIMAL_COMMA)})", re.IGNORECASE
)
_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?![\d,])")
_AND = re.compile(
    r"(?<=[\d)}$])\s*(?:(?<=\s)(?:et|und|y|e|og|och|en|и|oraz|și|và|dan|ve|ou|oder|o|или)(?=\s)|和|与|或|と|과|와|또는)\s*"
    r"(?=[-\d($\\a-z])"
)


def translated(content: str, cue: str) -> str:
    r"""``content`` with "and" in English, and with its decimal commas marked if the language of the cue writes them.

    >>> translated("3,5", "Réponse :"), translated("3,5", "Answer:"), translated("3 und 5", "Antwort:")
    ('3{,}5', '3,5', '3 and 5')
    """
    content = _AND.sub(" and ", content)
    if _COMMA_NOUN.search(cue):
        return _COMMA.sub(r"\1{,}\2", content)
    return content
