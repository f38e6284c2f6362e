r"""What an answer says: a number with its unit, a choice letter, words, a sequence of answers, or a formula.

Everything but a formula can be compared exactly and at once; only a :class:`Formula` ever needs computer algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from envs.math import normalise
from envs.math.calculator import CalculatorError, calculate
from envs.math.extract import MAX_ANSWER
from envs.math.units import Unit, unit

MAX_ITEMS = 64
"""Most items of a sequence that is compared item by item."""
MAX_DEPTH = 16
"""Deepest nesting of brackets of any kind."""
_MAX_EXPONENT = 300


@dataclass(frozen=True)
class Number:
    """A number written out: an integer, a decimal, a fraction, a mixed number, or in scientific notation.

    places: digits after the decimal point, None unless written as a decimal. significant: its significant digits.
    percent: a percent sign follows. unit: a known unit. base: of ``1011_2``. name: ``x`` in ``x = 3``.
    division: written as a quotient of two integers although its value is one. grouped: written with commas.
    """

    value: Fraction
    places: int | None = None
    significant: int = 0
    percent: bool = False
    unit: Unit | None = None
    base: int | None = None
    name: str = ""
    division: bool = False
    grouped: bool = False


@dataclass(frozen=True)
class Choice:
    """The letter of a multiple-choice answer; ``bare`` when nothing shows that it is not a variable."""

    letter: str
    bare: bool


@dataclass(frozen=True)
class Words:
    """An answer in words, in the spelling of :func:`envs.math.normalise.words`."""

    text: str


@dataclass(frozen=True)
class Sequence:
    """Several answers: ``opening`` and ``closing`` are the brackets as written, empty for a bare list."""

    items: tuple[Answer, ...]
    opening: str = ""
    closing: str = ""

    @property
    def ordered(self) -> bool:
        return self.opening in ("(", "[")


@dataclass(frozen=True)
class Formula:
    """Anything else, as tidy LaTeX; ``name`` is the ``y`` of ``y = ...``, which ``latex`` no longer holds."""

    latex: str
    name: str = ""


Answer = Number | Choice | Words | Sequence | Formula


class Unreadable(ValueError):
    """An answer that is empty, too long, nested too deep, or whose braces do not match."""


_INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:{_INTEGER})?\.\d+|(?:{_INTEGER})\.?"
_BARE_INTEGER = re.compile(r"-?\d{1,300}", re.ASCII)
_SIMPLE = re.compile(rf"(?P<number>{_DECIMAL})", re.ASCII)
_SCIENTIFIC = re.compile(
    r"\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|\(\s*([-+]?\d{1,4})\s*\)|([-+]?\d{1,4}))"
    r"|[eE]([-+]?\d{1,4})(?!\w))",
    re.ASCII,
)
_REPEATING = re.compile(r"(?P<whole>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\s*\{?(?P<cycle>\d+)\}?", re.ASCII)
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*(?=\\frac))?\\frac\{{\s*(?P<top>-?\s*(?:{_DECIMAL}))\s*\}}\{{\s*(?P<bottom>-?\s*(?:{_DECIMAL}))\s*\}}"
    rf"|(?P<mixed>\d+)\s+(?P<mtop>\d+)\s*/\s*(?P<mbottom>\d+)"
    rf"|(?P<stop>{_DECIMAL}|\(\s*-?\d+\s*\))\s*/\s*(?P<sbottom>-?(?:{_DECIMAL})|\(\s*-?\d+\s*\))",
    re.ASCII,
)
_BASED = re.compile(r"(\d+)\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))(?:\s*)", re.ASCII)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per cent\b|percentage points\b)", re.IGNORECASE)
_UNIT = re.compile(r"\s*(?P<words>[a-zA-Z][a-zA-Z./ -]*(?:\s*\^\s*\{?[23]\}?)?)$", re.ASCII)
_SIGN = re.compile(r"\s*([-+])\s*")
_SIGN_WORD = re.compile(r"^(?:minus|negative)\s+(?=[\d\\.])", re.IGNORECASE)
_ABOUT = re.compile(
    r"^(?:\\approx|\\sim|approximately|about|roughly|exactly|(?:the )?(?:final )?answer is:?)\s*", re.IGNORECASE
)
_NAME = re.compile(
    r"^(?P<name>(?!\\(?:sqrt|frac|text))\\?[a-zA-Z]+'?(?:(?:\s+|(?=\\))\\?[a-zA-Z]+){0,4}"
    r"(?:\s*_\s*(?:\{[^{}]{1,20}\}|\w))?(?:\(\s*[\w, ]{1,12}\))?)\s*(?:=|\\in(?![a-zA-Z]))\s*"
)
_TUPLE_NAME = re.compile(r"^\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z]){1,5}\s*\)\s*(?:=|\\in(?![a-zA-Z]))\s*(?=\()")
_FUNCTION = re.compile(r"\b(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|mod)\b")
_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*:?\s*)?(?:\((?P<a>[A-Ja-j])\)|(?P<b>[A-J])(?P<mark>[).:])?)(?P<rest>.*)",
    re.DOTALL,
)
_JOINT = re.compile(r"\s(?:and|or)\s|;|\\cup(?![a-zA-Z])")
_TIME = re.compile(r"\d{1,2}:\d{2}\s*(?:[ap]\.?\s?m\.?)?", re.IGNORECASE | re.ASCII)
_OPENING, _CLOSING = "([{", ")]}"

_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_NUMBER_WORDS = {word: value for value, word in enumerate(_ONES)} | {
    f"{tens} {ones}".strip(): 20 + 10 * i + j
    for i, tens in enumerate(_TENS)
    for j, ones in enumerate(["", *_ONES[1:10]])
}


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
    number = _named_number(plain)
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
    name = _NAME.match(text)
    if name and "=" not in text[name.end() :] and text[name.end() :]:
        return Formula(text[name.end() :], _short(name["name"]))
    return Formula(text)


def _words(plain: str) -> Words | Number:
    text = normalise.words(plain)
    if text in _NUMBER_WORDS:
        return Number(Fraction(_NUMBER_WORDS[text]))
    return Words(text)


def _looks_like_words(plain: str) -> bool:
    """No formula: only letters, spaced numbers and punctuation, with a word of three letters that has a vowel."""
    if re.search(r"[\\^_=<>+*/|{}]|\d[a-zA-Z]|[a-zA-Z]\d", plain) or _FUNCTION.search(plain.lower()):
        return False
    return any(len(word) >= 3 and set("aeiouyAEIOUY") & set(word) for word in re.findall(r"[^\W\d_]+", plain))


# Numbers --------------------------------------------------------------------------------------------------------------


def _named_number(plain: str) -> Number | None:
    """``3``, ``x = 3``, and ``1 + 2 = 3`` where the left side is arithmetic with the value of the right one."""
    name = _NAME.match(plain)
    rest = plain[name.end() :] if name else plain
    *lefts, last = rest.split("=")
    number = read_number(_ABOUT.sub("", last.strip()))
    if number is None:
        return None
    for left in lefts:
        try:
            if calculate(_arithmetic(left)) != number.value:
                return None
        except CalculatorError:
            return None
    return replace(number, name=_short(name["name"])) if name else number


def _short(name: str) -> str:
    """The name of a variable or function; a description such as "total cost" is none."""
    return "" if re.search(r"[a-zA-Z]{3}", name) else "".join(name.split())


def _arithmetic(text: str) -> str:
    """LaTeX arithmetic in the calculator's grammar, as far as it has words for it."""
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    return re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text).replace("{", "(").replace("}", ")")


def read_number(text: str) -> Number | None:
    """The number that ``text`` (as :func:`envs.math.normalise.plain` leaves it) writes out, or None.

    >>> read_number("1,234.50").value, read_number("3 1/2").value, read_number("x + 1")
    (Fraction(2469, 2), Fraction(7, 2), None)
    """
    text = _SIGN_WORD.sub("-", text.strip())
    if text.startswith("(") and text.endswith(")") and "," not in text and _enclosed(text):
        text = text[1:-1].strip()
    sign, position = 1, 0
    money = False
    while position < len(text) and position < 4:
        if match := _SIGN.match(text, position):
            sign = -sign if match[1] == "-" else sign
            position = match.end()
        elif text[position] in normalise.CURRENCY + "€£" and not money:
            money = True
            position += 1
        else:
            break
    found = _value(text, position)
    if found is None:
        return None
    number, position = found
    number = replace(number, value=sign * number.value)
    if match := _PERCENT.match(text, position):
        number, position = replace(number, percent=True), match.end()
    rest = text[position:]
    if not rest.strip(normalise.CURRENCY + " €£."):
        money = money or bool(rest.strip(" ."))
        return replace(number, unit=unit("dollar")) if money else number
    return _with_unit(number, rest, money)


def _with_unit(number: Number, rest: str, money: bool) -> Number | None:
    match = _UNIT.fullmatch(rest)
    if match is None or number.base is not None:
        return None
    words = match["words"].strip(" .-")
    known = unit(words)
    if known is not None and (len(words) > 1 or rest[0].isspace()):
        return replace(number, unit=known)
    # A noun that is no unit of measure ("12 apples") says what was counted; letters alone could be variables.
    noun = rest[0].isspace() and not _FUNCTION.search(words)
    if noun and all((word.isalpha() and len(word) >= 3) or word in ("of", "in", "a") for word in words.split()):
        return replace(number, unit=unit("dollar")) if money else number
    return None


def _value(text: str, position: int) -> tuple[Number, int] | None:
    """The number that starts at ``position`` and where it ends."""
    if match := _REPEATING.match(text, position):
        whole, fixed, cycle = match["whole"] or "0", match["fixed"], match["cycle"]
        cycles = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
        return Number(Fraction(int(whole + fixed), 10 ** len(fixed)) + cycles), match.end()
    if match := _FRACTION.match(text, position):
        number = _quotient(match)
        return (number, match.end()) if number is not None else None
    if match := _BASED.match(text, position):
        return Number(Fraction(int(match[1])), base=int(match[2] or match[3])), match.end()
    match = _SIMPLE.match(text, position)
    if match is None:
        return None
    number, position = _decimal(match["number"]), match.end()
    if scientific := _SCIENTIFIC.match(text, position):
        exponent = int(next(group for group in scientific.groups() if group is not None))
        if abs(exponent) > _MAX_EXPONENT:
            return None
        places = None if number.places is None else max(0, number.places - exponent)
        return replace(number, value=number.value * Fraction(10) ** exponent, places=places), scientific.end()
    return number, position


def _decimal(digits: str) -> Number:
    grouped = "," in digits
    digits = digits.replace(",", "").replace(" ", "").rstrip(".")
    whole, _, part = digits.partition(".")
    if not part:
        return Number(Fraction(int(whole or "0")), grouped=grouped)
    significant = len((whole + part).lstrip("0"))
    return Number(Fraction(int((whole or "0") + part), 10 ** len(part)), places=len(part), significant=significant)


def _quotient(match: re.Match[str]) -> Number | None:
    whole = match["whole"] or match["mixed"]
    top = _signed(match["top"] or match["mtop"] or match["stop"])
    bottom = _signed(match["bottom"] or match["mbottom"] or match["sbottom"])
    if bottom == 0:
        return None
    value = top / bottom
    if whole is not None:
        return Number(int(whole) + value) if 0 <= value < 1 else None
    return Number(value, division=value.denominator == 1)


def _signed(text: str) -> Fraction:
    text = text.strip("() ").replace(" ", "")
    return -_decimal(text[1:]).value if text.startswith("-") else _decimal(text).value


# Choices and sequences ------------------------------------------------------------------------------------------------


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
    return Choice(letter.upper(), bare=not marked)


def _sequence(text: str, depth: int) -> Answer | None:
    if r"\pm" in text and text.count(r"\pm") == 1:
        return Sequence(tuple(_read(_tidy(text.replace(r"\pm", sign)), depth + 1) for sign in "+-"))
    name = _NAME.match(text)
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
    if text.startswith("{") and text.endswith("}") and _enclosed(text):
        return r"\{", r"\}", text[1:-1]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _enclosed(text):
        return text[0], text[-1], text[1:-1]
    return "", "", text


def _enclosed(text: str) -> bool:
    """Whether the bracket that opens ``text`` is closed by its last character."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:
            return i == len(text) - 1
    return False


def _split(text: str, cup: bool = False) -> list[str]:
    """Split at the commas, semicolons, ``and`` and ``or`` (or only at unions) that are outside all brackets."""
    wrapped = re.sub(r"\\text\s*\{\s*(and|or)\s*,?\s*\}", r" \1 ", text)
    wrapped = re.sub(r",?\s+(and|or)\s+", r" \1 ", wrapped)
    parts, depth, start, i = [], 0, 0, 0
    while i < len(wrapped):
        character = wrapped[i]
        depth += (character in _OPENING) - (character in _CLOSING)
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
        step = (character in _OPENING) - (character in _CLOSING)
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


# Back to text ---------------------------------------------------------------------------------------------------------


def canonical(answer: Answer) -> str:
    r"""One spelling for answers that say the same: what votes are counted by and transcripts compared by.

    >>> canonical(read(r"\frac{2}{4}")), canonical(read("x = 0.50 cm")), canonical(read("x = 3, y = 4"))
    ('1/2', '1/2', 'x=3,y=4')
    """
    match answer:
        case Number():
            base = f"_{answer.base}" if answer.base else ""
            return f"{answer.value}{base}{'%' if answer.percent else ''}"
        case Choice():
            return answer.letter
        case Words():
            return answer.text
        case Sequence():
            items = [
                (f"{item.name}=" if isinstance(item, Number) and item.name else "") + canonical(item)
                for item in answer.items
            ]
            return f"{answer.opening}{','.join(items if answer.ordered else sorted(items))}{answer.closing}"
        case Formula():
            name = f"{answer.name}=" if answer.name else ""
            return name + normalise.squeeze(answer.latex)


def to_latex(answer: Answer) -> str:
    """``answer`` as LaTeX for a symbolic comparison."""
    match answer:
        case Number():
            if answer.places and not answer.percent:
                return _as_decimal(answer.value, answer.places)
            value = answer.value / 100 if answer.percent else answer.value
            if answer.unit and answer.unit.dimension == "angle":  # a formula it is compared with is in radians
                return rf"\frac{{{value.numerator} \pi}}{{{180 * value.denominator}}}"
            top = f"{value.numerator}"
            return top if value.denominator == 1 else rf"\frac{{{top}}}{{{value.denominator}}}"
        case Choice():
            return answer.letter
        case Words():
            return rf"\text{{{answer.text}}}"
        case Sequence():
            joint = r" \cup " if answer.opening == r"\cup" else ", "
            inside = joint.join(to_latex(item) for item in answer.items)
            return inside if joint != ", " else f"{answer.opening}{inside}{answer.closing}"
        case Formula():
            return f"{answer.name}={answer.latex}" if answer.name else answer.latex


def _as_decimal(value: Fraction, places: int) -> str:
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def thousands_as_list(answer: Number) -> Sequence | None:
    """``1,234`` read as the two numbers 1 and 234: the other meaning that spelling has."""
    if answer.places is not None or answer.value.denominator != 1 or not answer.grouped:
        return None
    digits = str(abs(int(answer.value)))
    first = len(digits) % 3 or 3
    groups = [digits[:first], *(digits[i : i + 3] for i in range(first, len(digits), 3))]
    sign = -1 if answer.value < 0 else 1
    return Sequence(tuple(Number(Fraction(int(group) * (sign if i == 0 else 1))) for i, group in enumerate(groups)))
