r"""Read an answer: from the text in a box to an :class:`~gagpo.envs.math.verify.answers.Answer`."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from gagpo.envs.math.verify import piecewise, regions, relations, systems
from gagpo.envs.math.verify.answers import (
    INFINITY,
    MINUS_INFINITY,
    NOTHING,
    Answer,
    Choice,
    Family,
    Formula,
    Matrix,
    Number,
    Relation,
    Sequence,
    Words,
)
from gagpo.envs.math.verify.extract import MAX_ANSWER
from gagpo.envs.math.verify.numerals import FUNCTION, MODULUS, agrees, counts, read_number
from gagpo.envs.math.verify.spelling import brackets, declarations, moments, normalise, phrases
from gagpo.envs.math.verify.spelling.factors import LETTERS
from gagpo.envs.math.verify.spelling.integers import family
from gagpo.envs.math.verify.spelling.symbols import variables
from gagpo.envs.math.verify.spelling.units import unit

MAX_ITEMS = 64
"""Maximum number of items of a sequence or entries of a matrix; longer ones are read as formulas."""
MAX_DEPTH = 16
"""Deepest nesting of brackets of any kind."""
_MAX_NESTED = 4
"""Deepest nesting of sequences."""

_BARE_INTEGER = re.compile(r"-?\d{1,300}", re.ASCII)
_CHOICE = re.compile(
    r"(?:(?:[Tt]he )?(?:correct )?(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*(?:is\b|:)?\s*)?"
    r"(?:\((?P<a>[A-Ja-j])\)|(?P<b>[A-J](?P<mark>[).:])?|[a-j]\)))(?P<rest>.*)",
    re.DOTALL,
)
_WRAPPED_CHOICE = re.compile(r"\\(?:text\w*|mathrm|mathbf)\s*\{\s*\(([A-J])\)[.:\s]*\}\s*(\S.*)", re.DOTALL)
_NO_CHOICE = re.compile(r"(?:and|or)\b|[-+*/^=<>,;_&(\\]")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_MINUS = re.compile(r"\\setminus(?![a-zA-Z])|-(?=\s*\\\{)")
_NAMED_TUPLE = re.compile(r"\(\s*([^()=]{1,60})\)\s*(?:=|\\in(?![a-zA-Z]))\s*(\(.*\)|\\\{.*\\\})")
_POINT = re.compile(
    r"^(?:[A-Z]'?|\\(?:text|mathrm)\s*\{\s*[A-Z]\s*\})\s*(?=\()|(?<=\))\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?$"
)
_SET_BUILDER = re.compile(r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:[|:])\s*(.+?)\s*\\\}")
_LINE = re.compile(r"\\math(?:bb|bf)\{R\}(?P<scripts>\s*[\^_].*)?")
_PARTS_OF_THE_LINE = {"+": ">", "-": "<", "0+": r"\ge", "+0": r"\ge", "0-": r"\le", "-0": r"\le"} | {
    **dict.fromkeys(("*", r"\times", r"\ast"), r"\ne"),
    **{f"{sign}0": sign for sign in (">", "<", r"\ge", r"\le", r"\ne")},
}
_MATRIX = re.compile(
    r"(?P<factor>[^&]*?)(?:\\cdot\s*)?[(\[]?\s*\\begin\s*\{(?P<kind>[pb]?matrix|smallmatrix|array)\}\s*"
    r"(?:\{[clr| ]*\})?(?P<rows>(?:(?!\\begin).)*?)\\end\s*\{(?P=kind)\}\s*[)\]]?",
    re.DOTALL,
)
_SYSTEM = re.compile(
    r"(?P<name>[a-zA-Z]\s*(?:\([^()]*\))?\s*=\s*)?(?P<brace>\\\{\s*)?\\begin\s*\{(?P<kind>cases|aligned|gathered|array)\}(?:\{[lcr]*\})?"
    r"(?P<body>(?:(?!\\begin).)*)\\end\s*\{(?P=kind)\}",
    re.DOTALL,
)
_UNIT_VECTORS = re.compile(r"\s*([+-]?)\s*([^+-]*?)\s*(?:\\cdot\s*)?\\mathbf\{([ijk])\}")
_NEITHER = re.compile(r"([a-zA-Z])\s*\\ne\s*\\pm(?![a-zA-Z])\s*([^,;()]+)")
"""Unequal to both values: ``x \\ne \\pm 2``."""
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MINUS_PLUS = re.compile(r"\\mp(?![a-zA-Z])")
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])")
_UNIT_AFTER = re.compile(
    r"(?:(?<=[^-+=/\s])\s*(\\(?:text|mathrm|mbox)\s*\{[^{}]*\})|\s[a-zA-Z]{2,})(?:\s*\^\s*\{?[23]\}?)?$"
)


class Unreadable(ValueError):
    """An answer that is empty, too long, nested too deeply, or has unmatched braces."""


def read(answer: str) -> Answer:
    r"""Read ``answer``; raises :class:`Unreadable`.

    >>> read(r"$\frac{1}{2}$").value, read("50%").percent, read("(1, 2)").ordered
    (Fraction(1, 2), True, True)
    >>> read(r"\text{Monday}"), read(r"y = 2x + 1"), read("2x + 1 = 5")
    (Words(text='monday'), Formula(latex='2x + 1', name='y', unit=None, rounded=None), Relation(latex='2x + 1 = 5'))
    >>> read("x > 3") == replace(read(r"(3, \infty)"), name="x")
    True
    """
    if len(answer) > MAX_ANSWER:
        raise Unreadable(f"longer than {MAX_ANSWER} characters")
    if _BARE_INTEGER.fullmatch(answer):  # a shortcut for the most frequent answer
        return Number(Fraction(int(answer)))
    text = normalise.latex(answer)
    if not text:
        raise Unreadable("empty")
    _check_brackets(text)
    plain = normalise.plain(text)
    english = phrases.to_latex(plain) if re.search("[a-zA-Z]{2}", plain) else plain
    return _read(text if english == plain else english, depth=0)


def _read(text: str, depth: int) -> Answer:
    text = text.strip()
    spellings = family(text)
    if spellings and depth < _MAX_NESTED:
        return Family(*(_read(spelling, depth + 1) for spelling in spellings))
    text = declarations.stripped(text)
    plain = normalise.plain(text)
    if not plain:
        raise Unreadable("empty")
    if moment := moments.moment(plain):
        return Words(moment)
    number = read_number(plain)
    if number is not None:
        return number
    if digits := moments.hexadecimal(plain):
        return Words(digits)
    statement = relations.statement(text)
    if statement is not None:
        number = read_number(normalise.plain(statement.value))
        if number is not None:
            if relations.holds(statement.lefts, number):
                return replace(number, name=statement.name)
            return Relation(text)
        if statement.lefts and not statement.name and not variables(statement.value):  # 256 = 2^8
            number = read_number(normalise.plain(statement.lefts[0]))
            if number is not None and relations.holds([*statement.lefts[1:], statement.value], number):
                return number
    choice = _choice(plain, depth) or _wrapped_choice(text, depth)
    if choice is not None:
        return choice
    if normalise.is_text(text) and re.search(r"[=<>()\[\]]", plain):  # a formula within \text{}
        return _read(plain, depth + 1)
    if normalise.is_text(text):
        return Words(normalise.words(plain))
    if depth < _MAX_NESTED:
        answer = _several(text, depth + 1)
        if answer is None and statement is not None and not statement.lefts:
            return _with_name(_read(statement.value, depth + 1), statement)
        answer = answer or relations.solved(text, lambda end: _read(end, depth + 1)) or _delimited(text, depth + 1)
        if answer is not None:
            return answer
    if _looks_like_words(plain):
        return Words(normalise.words(plain))
    return _formula(text)


def _with_name(answer: Answer, statement: relations.Statement) -> Answer:
    if isinstance(answer, Number | Formula):
        return replace(answer, name=statement.name)
    if statement.contained and isinstance(answer, Sequence) and regions.is_region(answer):
        return replace(answer, name=statement.name)
    return answer


def _formula(text: str) -> Formula:
    """An expression, its unit separated."""
    if text.startswith(normalise.CURRENCY) and len(text) > 1:
        return Formula(text[1:].strip(), unit=unit("dollar"))
    match = None if r"\int" in text else _UNIT_AFTER.search(text)  # dm is a differential
    plain_text = normalise.plain(match[0]) if match else ""
    unit_after = unit(plain_text)
    is_multiple = plain_text in LETTERS and unit_after is None
    if (
        match
        and counts(plain_text)
        and not is_multiple
        and (unit_after or match[1] or plain_text.endswith(("unit", "units")))
        and read_number(normalise.plain(text[: match.start()])) is None  # 5 with words that it may not have
    ):
        return Formula(text[: match.start()].strip(), unit=unit_after)
    return Formula(text)


def _looks_like_words(plain: str) -> bool:
    """Whether ``plain`` is not a formula: letters, separate numbers and punctuation, and a real word among them."""
    if re.search(r"[\\^_=<>+*/|{}]|\d[a-zA-Z]|[a-zA-Z]\d", plain) or FUNCTION.search(plain.lower()):
        return False
    return plain.lower() == "no" or any(
        len(word) >= 3 and set("aeiouyAEIOUY") & set(word) for word in re.findall(r"[^\W\d_]+", plain)
    )


def _wrapped_choice(text: str, depth: int) -> Choice | None:
    r"""A letter in a text command before the value it stands for, as in ``\textbf{(A)}\ \sqrt{2}``."""
    match = _WRAPPED_CHOICE.fullmatch(text)
    if match and depth < _MAX_NESTED:
        return Choice(match[1], _read(match[2], depth + 1))
    return None


def _choice(plain: str, depth: int) -> Choice | None:
    match = _CHOICE.fullmatch(plain)
    if match is None:
        return None
    letter = match["a"] or match["b"][0]
    remainder = match["rest"].strip()
    is_marked = bool(match["a"] or match["mark"]) or len(match["b"]) > 1 or match.start("b") > 0
    if remainder and not (is_marked and (read_number(remainder) or not _NO_CHOICE.match(remainder))):
        return None  # f(x), (a) + b, A and B, (A), (B)
    if remainder and re.search(r"\(?\b[A-E]\b\)", remainder):
        return None  # several letters
    return Choice(letter.upper(), _read(remainder, depth + 1) if remainder and depth < _MAX_NESTED else None)


def _several(text: str, depth: int) -> Answer | None:
    """An answer of several parts (alternatives, conditions, lists, rows of a matrix), or None."""
    text = _NEITHER.sub(r"\1 \\ne \2, \1 \\ne -\2", text)
    if {len(_PLUS_MINUS.findall(text)), len(_MINUS_PLUS.findall(text))} in ({0, 1}, {1}):
        variants = (_PLUS_MINUS.sub(upper, _MINUS_PLUS.sub(lower, text)) for upper, lower in ("+-", "-+"))
        return Sequence(tuple(_read(re.sub(r"^\s*\+", "", signed), depth) for signed in variants))
    if r"\begin" in text:
        if separate := systems.environments(text):
            return Sequence(tuple(_read(system, depth) for system in separate))
        return _environment(text, depth)
    if r"\approx" in text:
        exact, *rounded = brackets.split(text, _APPROXIMATELY)[0]
        if exact and len(rounded) == 1 and rounded[0]:
            return _approximation(text, exact, rounded[0], depth)
    if named_tuple := _NAMED_TUPLE.fullmatch(text):
        names = [relations.variable(name) for name in named_tuple[1].split(",")]
        values = brackets.split(named_tuple[2][1:-1], relations.SEPARATOR)[0]
        if all(names) and named_tuple[2].startswith("\\"):  # a set of points
            return _read(named_tuple[2], depth)
        if all(names) and len(names) == len(values):
            return Sequence(tuple(_read(f"{name} = {value}", depth) for name, value in zip(names, values, strict=True)))
    if (solutions := systems.solutions(text)) is not None:
        return Sequence(tuple(_read(solution, depth) for solution in solutions))
    items, joints = brackets.split(text, relations.SEPARATOR)
    modulus = MODULUS.search(items[-1]) if joints else None
    if modulus and not any(map(MODULUS.search, items[:-1])):
        items[:-1] = [item + modulus[0] for item in items[:-1]]  # x \equiv 2, 3 \pmod 5
    if not joints and r"\cup" in text:
        items, joints = brackets.split(text, _CUP)
        joints = ["or"] * len(joints) if all(map(relations.is_relation, items)) else []
    if not joints or len(items) > MAX_ITEMS or not all(items):
        return None
    first = next((number for number, item in enumerate(items) if r"\ne" in item), len(items))
    if not any(map(relations.is_relation, items[first + 1 :])):  # x \ne 2, 3
        name = items[first].partition(r"\ne")[0] if first < len(items) else ""
        items[first + 1 :] = [rf"{name} \ne {item}" for item in items[first + 1 :]]
    return _join(text, tuple(_read(item, depth) for item in items), joints)


def _join(text: str, items: tuple[Answer, ...], joints: list[str]) -> Answer:
    """A list, or the region where conditions on one variable hold; a comma means "and" unless that region is empty."""
    conditions = [item for item in items if isinstance(item, Sequence) and item.name and regions.is_region(item)]
    names = {condition.name for condition in conditions}
    if len(conditions) < len(items) or len(names) > 1:
        return Sequence(items)
    [name] = names
    is_or = [joint in ("or", r"\lor") or joint.endswith("or") for joint in joints]
    groups = [[conditions[0]]]
    for condition, starts in zip(conditions[1:], is_or, strict=True):
        groups.append([condition]) if starts else groups[-1].append(condition)
    intersections = [regions.intersection(group, name) for group in groups]
    if all(intersections):
        return regions.union([region for region in intersections if region], name)
    if {*joints} <= {",", ";"}:
        return regions.union(conditions, name)
    return Relation(text)


def _approximation(text: str, exact: str, rounded: str, depth: int) -> Answer:
    r"""Read ``exact \approx rounded``: the decimal must be correct where that can be checked."""
    if relations.name_of(exact) is not None:
        return _read(f"{exact} = {rounded}", depth)
    answer = _read(exact, depth)
    decimal = read_number(normalise.plain(rounded))
    if isinstance(answer, Number) and decimal is not None:
        is_rounded = agrees(decimal.value, decimal.places or 0, answer.value)
        if is_rounded or decimal.percent != answer.percent:
            return answer
        return Relation(text)
    if isinstance(answer, Formula):
        return replace(answer, rounded=decimal)
    return answer


def _environment(text: str, depth: int) -> Answer | None:
    """A function by cases, a system of equations, read as a list, or a matrix, perhaps with a factor."""
    if system := _SYSTEM.fullmatch(text):
        has_brace = system["kind"] == "cases" or system["brace"]
        branches = piecewise.rows(system["body"]) if has_brace else None
        if branches:
            return piecewise.function(branches, lambda part: _read(part, depth))
        body = re.sub(r"&(?=\s*[=<>\\])|(?<==)\s*&", "", system["body"])
        lines = [line for line in (line.strip(" ,;") for line in body.split(r"\\")) if line]
        if "&" not in body and not system["name"] and all(map(relations.is_relation, lines)):
            return _read(", ".join(lines), depth)
    match = _MATRIX.fullmatch(text)
    if match is None or relations.is_relation(match["factor"]):
        return None
    rows = [row.split("&") for row in match["rows"].split(r"\\") if row.strip()]
    if not rows or len({len(row) for row in rows}) > 1 or sum(map(len, rows)) > MAX_ITEMS:
        return None
    if not all(entry.strip() for row in rows for entry in row):
        return None
    factor = match["factor"].strip()
    if factor in ("", "-"):
        entries = [[_read(f"{factor}({entry})" if factor else entry, depth) for entry in row] for row in rows]
    else:
        scale = _read(factor, depth)
        entries = [[_product(scale, factor, _read(entry, depth), entry) for entry in row] for row in rows]
    return Matrix(tuple(map(tuple, entries)))


def _product(scale: Answer, factor: str, entry: Answer, text: str) -> Answer:
    if isinstance(scale, Number) and isinstance(entry, Number):
        return Number(scale.value * entry.value)
    return Formula(f"({factor}) ({text.strip()})")


def _delimited(text: str, depth: int) -> Answer | None:
    """A set, a region of the real line, a point, a vector, or a matrix in brackets."""
    squeezed = normalise.squeeze(text)
    if squeezed in (r"\emptyset", r"\{\}"):
        return NOTHING
    if squeezed.lstrip("+-") == r"\infty":
        return MINUS_INFINITY if squeezed.startswith("-") else INFINITY
    if line := _LINE.fullmatch(text):
        selector = _PARTS_OF_THE_LINE.get(re.sub(r"[\s^_{}]", "", line["scripts"] or ""))
        if selector or not line["scripts"]:
            if selector:
                return regions.half_line(selector, Number(Fraction(0)), "")
            return regions.real_line()
    minuend, *subtrahends = brackets.split(text, _MINUS)[0]
    if len(subtrahends) == 1 and minuend and subtrahends[0]:
        return _difference(minuend, _read(subtrahends[0], depth), depth)
    unions = brackets.split(text, _CUP)[0]
    if len(unions) > 1 and all(unions):
        return Sequence(tuple(_read(selector, depth) for selector in unions), r"\cup", r"\cup")
    if set_builder := _SET_BUILDER.fullmatch(text):
        return _read(set_builder[1], depth)
    if vector := _unit_vectors(text, depth):
        return vector
    opening, closing, inner = _brackets(_POINT.sub("", text) if "," in text else text)
    entries = brackets.split(inner, relations.SEPARATOR)[0] if opening else [text]
    if not opening or len(entries) > MAX_ITEMS or not all(entries):
        return None
    if opening in ("(", r"\{") and any(map(relations.is_relation, entries)):  # (x = 3, y = 4), \{x > 0\}
        return _read(inner, depth)
    items = tuple(_read(selector, depth) for selector in entries)
    if len(items) == 1 and opening != r"\{":
        return items[0]
    rows = [item.items for item in items if isinstance(item, Sequence) and item.opening == "["]
    if opening == "[" and len(rows) == len(items) and len({*map(len, rows)}) == 1:
        return Matrix(tuple(rows))
    if re.match(r"\s*(?:C|\\(?:text|mathrm)\s*\{\s*C\s*\})\s*\(", text):
        label = "C"
    else:
        label = ""
    return Sequence(items, opening, closing, label=label)


def _difference(minuend: str, points: Answer, depth: int) -> Answer | None:
    """A region minus a set of points or another region."""
    region = _read(minuend, depth)
    if not isinstance(region, Sequence) or not isinstance(points, Sequence) or not regions.is_region(region):
        return None
    if points.opening == r"\{":
        excluded = [regions.half_line(regions.UNEQUAL, point, "") for point in points.items]
    else:
        excluded = [regions.complement(points, "") if regions.is_region(points) else None]
    exclusions = [exclusion for exclusion in excluded if exclusion]
    if len(exclusions) < len(excluded):
        return None
    return regions.intersection([region, *exclusions], "")


def _unit_vectors(text: str, depth: int) -> Sequence | None:
    r"""``3\mathbf{i} + 4\mathbf{j}`` as (3, 4)."""
    terms = list(_UNIT_VECTORS.finditer(text)) if r"\mathbf" in text else []
    axes = [term[3] for term in terms]
    if len(terms) < 2 or len({*axes}) < len(axes) or "".join(term[0] for term in terms) != text:
        return None
    components = {term[3]: _read(f"{term[1]}{term[2] or 1}".lstrip("+"), depth) for term in terms}
    return Sequence(
        tuple(components.get(axis, Number(Fraction(0))) for axis in ("ijk" if "k" in axes else "ij")), "(", ")"
    )


def _brackets(text: str) -> tuple[str, str, str]:
    """The brackets around all of ``text`` (empty if there are none) and their content."""
    text = text.strip()
    if text.startswith(r"\{") and text.endswith(r"\}") and r"\}" not in text[2:-2]:
        return r"\{", r"\}", text[2:-2]
    if text.startswith("{") and text.endswith("}") and brackets.enclosed(text):
        return r"\{", r"\}", text[1:-1]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and brackets.enclosed(text):
        return text[0], text[-1], text[1:-1]
    if len(text) > 2 and (text[0] == "]" or text[-1] == "[") and not re.search(r"[()\[\]]", text[1:-1]):
        outward = {"]": "(", "[": "[", "(": "("}, {"[": ")", "]": "]", ")": ")"}
        if text[0] in outward[0] and text[-1] in outward[1]:  # ]2, 5[ excludes both ends
            return outward[0][text[0]], outward[1][text[-1]], text[1:-1]
    return "", "", text


def _check_brackets(text: str) -> None:
    """Check that braces match and bound the depth. Round and square brackets need not match (``B) 12``)."""
    braces = depth = 0
    escaped = False
    for character in text:
        step = (character in brackets.OPENING) - (character in brackets.CLOSING)
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
