"""Compare two answers.

Numbers, choices, words and sequences of them are compared exactly. Formulas go to ``symbolic``: computer algebra in a
verifier process, or a function that raises :class:`NeedsAlgebra`. Both processes run this code, so the verdict does not
depend on where it was reached.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from gagpo.envs.math.verify import regions
from gagpo.envs.math.verify.answers import (
    INFINITY,
    MINUS_INFINITY,
    Answer,
    Choice,
    Family,
    Formula,
    Matrix,
    Number,
    Relation,
    Sequence,
    Words,
    canonical,
    to_latex,
)
from gagpo.envs.math.verify.numerals import SIGNIFICANT_DIGITS, agrees, read_number
from gagpo.envs.math.verify.residues import residue, same_residues
from gagpo.envs.math.verify.spelling import brackets, normalise
from gagpo.envs.math.verify.spelling.factors import LETTERS
from gagpo.envs.math.verify.spelling.symbols import variables
from gagpo.envs.math.verify.spelling.units import unit
from gagpo.envs.math.verify.symbolic import is_natural

Reason = Literal["match", "mismatch", "no_answer", "unparsable", "timeout"]


class NeedsAlgebra(Exception):
    """The comparison includes a formula, which only a verifier process may evaluate."""


Symbolic = Callable[[str, str, bool], bool]
"""Whether gold answer and prediction, as LaTeX, are equal; the flag allows unevaluated arithmetic."""


def needs_algebra(gold: str, prediction: str, unevaluated: bool) -> bool:
    """The ``symbolic`` of a process without computer algebra."""
    raise NeedsAlgebra


def same(gold: Answer, prediction: Answer, symbolic: Symbolic) -> bool:
    """Whether ``prediction`` equals ``gold``. Not symmetric: the gold answer sets the kind and form."""
    if gold == prediction:
        return True
    if isinstance(gold, Number) or isinstance(prediction, Number):
        gold_residue = residue(gold)
        prediction_residue = residue(prediction)
        if gold_residue is not None and prediction_residue is not None:
            return same_residues(gold_residue, prediction_residue)
    match gold, prediction:
        case (Family(), Family()):
            return same(gold.general, prediction.general, symbolic)
        case (Family(), _):
            return same(gold.written, prediction, symbolic)
        case (_, Family()):
            return same(gold, prediction.written, symbolic)
        case (Number(), Number()):
            return same_numbers(gold, prediction)
        case (Choice(), Choice()):
            values = gold.value is None or prediction.value is None or same(gold.value, prediction.value, symbolic)
            return gold.letter == prediction.letter and values
        case (Choice(), Formula()):
            return gold.letter == prediction.latex.upper()
        case (Choice(value=value), _) if value is not None:
            return same(value, prediction, symbolic)
        case (_, Choice(value=value)) if value is not None:
            return same(gold, value, symbolic)
        case (Number(clock=time), Words(text)) | (Words(text), Number(clock=time)) if time:
            return time == text
        case (Words(), _) | (_, Words()):
            return _same_words(gold, prediction)
        case (Relation(), _) | (_, Relation()):
            return _same_relations(gold, prediction, symbolic)
        case (Matrix(), Matrix()):
            return _same_matrices(gold, prediction, symbolic)
        case (Matrix(), Sequence()):
            return prediction.pointed and _same_vectors(gold, prediction, symbolic)
        case (Sequence(), Matrix()):
            return gold.pointed and _same_vectors(gold, prediction, symbolic)
        case (Sequence(), Sequence()):
            return _same_sequences(gold, prediction, symbolic)
        case (Sequence(), _) | (_, Sequence()):
            return _value_and_sequence(gold, prediction, symbolic)
        case (Number(), Formula()):
            return _number_and_formula(gold, prediction, symbolic)
        case (Formula(), Number() | Formula()):
            return _same_formulas(gold, prediction, symbolic)
    return False


def _same_matrices(gold: Matrix, prediction: Matrix, symbolic: Symbolic) -> bool:
    shapes = [(len(matrix.rows), len(matrix.rows[0])) for matrix in (gold, prediction)]
    if shapes[0] != shapes[1]:
        return False
    return all(
        same(gold_entry, prediction_entry, symbolic)
        for gold_row, prediction_row in zip(gold.rows, prediction.rows, strict=True)
        for gold_entry, prediction_entry in zip(gold_row, prediction_row, strict=True)
    )


def _value_and_sequence(gold: Answer, prediction: Answer, symbolic: Symbolic) -> bool:
    """Compare a value with a sequence: a list of one, a formula with its domain, or a binomial coefficient."""
    match gold, prediction:
        case (Formula(), Sequence(opening="", items=(Formula() as main, *domain))) if domain and _is_natural(
            main, domain, symbolic
        ):
            return same(gold, main, symbolic)
        case (Formula(), Sequence(label="C", items=(top, bottom))) if r"\binom" in gold.latex:
            return same(gold, _binomial(top, bottom), symbolic)
        case (Sequence(label="C", items=(top, bottom)), Formula()) if r"\binom" in prediction.latex:
            return same(_binomial(top, bottom), prediction, symbolic)
        case (Sequence(items=(item,)), _) if not isinstance(item, Sequence):
            return same(item, prediction, symbolic)
        case (_, Sequence(items=(item,))) if not isinstance(item, Sequence):
            return same(gold, item, symbolic)
        case (Number() | Formula(), Sequence(opening="", items=items)) if items:
            # Two spellings of one value, as in "1/2 or 0.5", but not the "50 or 0.5" that 50 % would be each.
            return len(items) <= 3 and all(
                same(gold, item, symbolic) and same(items[0], item, symbolic) for item in items
            )
    return False


def _is_natural(formula: Formula, conditions: list[Answer], symbolic: Symbolic) -> bool:
    """Whether conditions state the natural domain of ``formula``, which for a sequence ``a_n`` is a positive index."""
    stated = [condition for condition in conditions if isinstance(condition, Sequence) and regions.is_region(condition)]
    name = stated[0].name if stated else ""
    if not name or len(stated) < len(conditions) or any(condition.name != name for condition in stated):
        return False
    region = regions.intersection(stated, name)
    intervals = regions.pieces(region) if region else []
    if formula.name.endswith(f"_{name}") and intervals:
        low, high = intervals[0].items
        is_start = isinstance(low, Number) and low.value in (0, 1)
        return is_start and len(intervals) == 1 and intervals[0].opening == "[" and high == INFINITY
    if symbolic is needs_algebra and intervals:
        raise NeedsAlgebra
    spelled = [(interval.opening, *map(to_latex, interval.items), interval.closing) for interval in intervals]
    return is_natural(formula.latex, name, spelled)


def _number_and_formula(gold: Number, prediction: Formula, symbolic: Symbolic) -> bool:
    if gold.unit:
        number = read_number(_LETTER_UNIT.sub(r"\1 \2", prediction.latex))
        if number:
            return same_numbers(gold, number)  # 7m, which could also be a product
    if gold.places is not None and prediction.rounded is not None:
        return same_numbers(gold, prediction.rounded)
    if gold.unit and gold.unit.dimension == "angle" and r"\pi" in prediction.latex:
        return _equal(gold, prediction, symbolic)
    # A long decimal may stand for a formula: 1.4142136 for a root of 2.
    is_decimal = gold.places is not None and gold.significant >= SIGNIFICANT_DIGITS
    return is_decimal and _equal(gold, prediction, symbolic)


def _binomial(top: Answer, bottom: Answer) -> Formula:
    return Formula(rf"\binom{{{to_latex(top)}}}{{{to_latex(bottom)}}}")


def _equal(gold: Answer, prediction: Answer, symbolic: Symbolic) -> bool:
    return symbolic(to_latex(gold), to_latex(prediction), False)


def same_numbers(gold: Number, prediction: Number) -> bool:
    if not _same_name(gold.name, prediction.name):
        return False
    if prediction.division and not gold.division:
        return False
    if gold.base or prediction.base:
        # The question may have named the base of the gold answer; a base that only the prediction has is another form.
        bases = (gold.base, None) if gold.base else (10,)
        return prediction.base in bases and gold.value == prediction.value
    if gold.modulus or prediction.modulus:
        return same_residues(gold, prediction)
    if prediction.unit and prediction.unit.dimension == "ratio" and not gold.unit:  # 5 ppm is not 5
        prediction = replace(prediction, value=prediction.value * prediction.unit.size, unit=None)
    if prediction.multiple > 1 and not gold.unit:
        prediction = replace(prediction, value=prediction.value * prediction.multiple, unit=None)
    for first, second in ((gold, prediction), (prediction, gold)):
        if first.unit and second.percent:
            return False
        if (first.unit or first.percent) and second.counted and not second.percent:
            return False
    if gold.unit and prediction.unit:
        if gold.unit.dimension != prediction.unit.dimension:
            return False
        return _close(gold, prediction, prediction.unit.size / gold.unit.size)
    if gold.percent == prediction.percent:
        return _close(gold, prediction)
    # One side has a percent sign; its value is a hundredth of the number.
    if _close(gold, prediction, Fraction(1, 100) if prediction.percent else Fraction(100)):
        return True
    # 0.5 % and 0.5 differ, but 50 % and 50 both answer a question for a percentage.
    above_one = abs(gold.value if gold.percent else prediction.value) > 1
    return above_one and _close(gold, prediction)


def _same_name(name: str, other_name: str) -> bool:
    """Whether two names may mean the same: one is missing, equal, ``y`` and ``y(t)``, or ``y`` and ``f(x)``."""
    if not name or not other_name or name == other_name:
        return True
    if "y" in (name, other_name) and (name + other_name).endswith(("(x)", "(x)y")):
        return True
    stems = [side.partition("(")[0] for side in (name, other_name)]
    return stems[0] == stems[1] and (name in stems or other_name in stems)


def _close(gold: Number, prediction: Number, scale: Fraction = Fraction(1)) -> bool:
    """Whether ``gold`` equals ``prediction * scale`` exactly, or to the digits of the shorter decimal."""
    if gold.value == prediction.value * scale:
        return True
    decimals = [
        (number, target)
        for number, target in ((gold, prediction.value * scale), (prediction, gold.value / scale))
        if number.places is not None
    ]
    if not decimals:
        return False
    shorter, exact = min(decimals, key=lambda pair: pair[0].significant)
    return shorter.significant >= SIGNIFICANT_DIGITS and agrees(shorter.value, shorter.places or 0, exact)


_LETTER_UNIT = re.compile(r"(\d)([a-zA-Z]{1,4})$")
_PLAIN_REPLIES = ("yes", "no", "true", "false")
_REPLY_END = re.compile(r",|;|\.|  |\bbecause\b|\bsince\b")
_CLAUSES = re.compile(r"[,;.:/]|\s-+\s|\b(?:or|but|and|then)\b")
_REPLY_FILLERS = re.compile(r"^(?:(?:maybe|perhaps|actually|rather|sorry|wait|oh|well|i mean|also)\b\s*)+")
_LIST_OF_WORDS = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+")


def _same_words(gold: Answer, prediction: Answer) -> bool:
    gold_text = _as_words(gold)
    prediction_text = _as_words(prediction)
    if gold_text in _PLAIN_REPLIES and not _takes_back(gold_text, prediction_text):
        prediction_text = _REPLY_END.split(prediction_text, maxsplit=1)[0].strip()
    lists = [sorted(_LIST_OF_WORDS.split(side)) for side in (gold_text, prediction_text)]
    return gold_text == prediction_text or (lists[0] == lists[1] and all(len(item.split()) <= 2 for item in lists[0]))


def _takes_back(reply: str, text: str) -> bool:
    """Whether another plain reply stands alone after the first one: ``yes, no``, but not ``yes, no cube is left``."""
    clauses = (_REPLY_FILLERS.sub("", clause.strip()).strip(" !?") for clause in _CLAUSES.split(text)[1:])
    return any(clause in _PLAIN_REPLIES and clause != reply for clause in clauses)


def _as_words(answer: Answer) -> str:
    if isinstance(answer, Words):
        return answer.text
    return normalise.words(normalise.plain(to_latex(answer)))


_MULTIPLES = frozenset(filter(None, map(unit, LETTERS)))
"""Units whose symbols may also be multiples."""
_INFINITE = (INFINITY, MINUS_INFINITY)
_EQUALITY = re.compile(r"=|\\equiv(?![a-zA-Z])")


def _same_formulas(gold: Formula, prediction: Number | Formula, symbolic: Symbolic) -> bool:
    if not _same_name(gold.name, prediction.name):
        return False
    gold_formula = gold
    prediction_formula = prediction
    # One side may leave the name out, except where the equation of a curve is asked for.
    if gold.name != prediction.name or gold.name not in ("y", "z") or not variables(gold.latex):
        gold_formula = replace(gold, name="")
        prediction_formula = replace(prediction, name="")
    if isinstance(prediction_formula, Formula):
        if prediction_formula.unit in _MULTIPLES and not gold_formula.unit:
            return False  # 5x M may be five million x
        if gold_formula.unit and prediction_formula.unit and gold_formula.unit != prediction_formula.unit:
            if gold_formula.unit.dimension != prediction_formula.unit.dimension:
                return False
            scale = gold_formula.unit.size / prediction_formula.unit.size
            gold_formula = replace(
                gold_formula, latex=rf"\frac{{{scale.numerator}}}{{{scale.denominator}}} ({gold_formula.latex})"
            )
        elif canonical(gold_formula) == canonical(prediction_formula):
            return True
        if _CONSTANT.search(gold_formula.latex) and _ANY_CONSTANT.search(prediction_formula.latex):
            gold_formula = replace(gold_formula, latex=_CONSTANT.sub("", gold_formula.latex))
            prediction_formula = replace(prediction_formula, latex=_ANY_CONSTANT.sub("", prediction_formula.latex))
    if gold_formula in _INFINITE or prediction_formula in _INFINITE:
        return False
    if _equal(gold_formula, prediction_formula, symbolic):
        return True
    return isinstance(prediction_formula, Formula) and any(
        _equal(gold_formula, replace(prediction_formula, latex=latex), symbolic)
        for latex in _with_constants_of(gold_formula.latex, prediction_formula.latex)
    )


_ARBITRARY = re.compile(r"(?<![a-zA-Z\\{])(?:[cC]_(?:\d|\{\d\})|C(?=\s*(?:e\s*\^|\\(?:sin|cos|exp)(?![a-zA-Z]))))")
"""Arbitrary constants of a general solution: numbered ones, and a factor C of an exponential or trigonometric one."""
_OTHER_CONSTANT = re.compile(r"(?<![a-zA-Z\\{_])[A-DKck](?:_(?:\d|\{\d\}))?(?![a-zA-Z_])")
_MAX_CONSTANTS = 3  # six orders


def _with_constants_of(gold: str, prediction: str) -> Iterator[str]:
    """The prediction with its arbitrary constants named as in the gold formula, in each order."""
    names = list(dict.fromkeys(_ARBITRARY.findall(gold)))
    other_names = [
        name for name in dict.fromkeys(_OTHER_CONSTANT.findall(prediction)) if name not in gold or name in names
    ]
    if not 1 <= len(names) == len(other_names) <= _MAX_CONSTANTS:
        return
    for order in itertools.permutations(names):
        new = dict(zip(other_names, order, strict=True))
        yield _OTHER_CONSTANT.sub(lambda match, new=new: new.get(match[0], match[0]), prediction)  # type: ignore[misc]


_CONSTANT = re.compile(r"\+\s*C\s*$|^\s*C\s*\+")
_ANY_CONSTANT = re.compile(r"\+\s*(?:[CcKk](?:_\w)?|\\text\s*\{\s*const(?:ant)?\.?\s*\})\s*$|^\s*[CcKk]\s*\+")
"""A constant of integration; the prediction may name it otherwise."""


def _same_relations(gold: Answer, prediction: Answer, symbolic: Symbolic) -> bool:
    """Compare unsolved relations, which may be the equation of a curve or a chain of equal sides."""
    match gold, prediction:
        case (Relation(), Relation() | Formula()):
            return canonical(gold) == canonical(prediction) or _equal(gold, prediction, symbolic)
        case (Relation(), Sequence()):
            return _equal(gold, prediction, symbolic)
        case (Formula(), Relation()) if gold.name and variables(gold.latex):
            return _equal(gold, prediction, symbolic)
        case (Formula(), Relation()):
            # Every side equals the gold answer, the last one fully evaluated: \sqrt{18} + \sqrt{8} = 5\sqrt{2}.
            *sides, last = brackets.split(prediction.latex, _EQUALITY)[0]
            if not sides or not variables(prediction.latex) <= variables(gold.latex):
                return False
            return _same_formulas(gold, Formula(last), symbolic) and all(
                symbolic(gold.latex, side, True) for side in sides
            )
    return False


def _same_vectors(gold: Answer, prediction: Answer, symbolic: Symbolic) -> bool:
    """Compare a row or column with a vector in round brackets."""
    vectors = []
    for side in (gold, prediction):
        if isinstance(side, Matrix):
            is_vector = len(side.rows) == 1 or len(side.rows[0]) == 1
            side = Sequence(tuple(entry for row in side.rows for entry in row) if is_vector else (), "(", ")")
        vectors.append(side)
    return same(vectors[0], vectors[1], symbolic)


def _without_repeats(sequence: Sequence, symbolic: Symbolic, count: int) -> Sequence:
    """A set with every member once; members that need algebra are compared if there are more than ``count``."""
    if sequence.opening != r"\{":
        return sequence
    members = list(dict.fromkeys(sequence.items))
    for is_same in (_written_alike, same):
        if is_same is same and len(members) <= count:
            break
        distinct: list[Answer] = []
        for member in members:
            if not any(is_same(earlier, member, symbolic) for earlier in distinct):
                distinct.append(member)
        members = distinct
    return replace(sequence, items=tuple(members))


def _written_alike(first: Answer, second: Answer, symbolic: Symbolic) -> bool:
    if isinstance(first, Number) and isinstance(second, Number):
        return replace(first, places=None, significant=0) == replace(second, places=None, significant=0)
    return type(first) is type(second) and canonical(first) == canonical(second)


def _same_sequences(gold: Sequence, prediction: Sequence, symbolic: Symbolic) -> bool:
    gold = _without_repeats(gold, symbolic, len(prediction.items))
    prediction = _without_repeats(prediction, symbolic, len(gold.items))
    if len(gold.items) != len(prediction.items) or not _same_name(gold.name, prediction.name):
        return False
    gold_coordinates = _coordinates(gold)
    prediction_coordinates = _coordinates(prediction)
    if gold_coordinates and prediction_coordinates:
        if gold_coordinates.keys() != prediction_coordinates.keys():
            return False
        return all(same(value, prediction_coordinates[name], symbolic) for name, value in gold_coordinates.items())
    if gold_coordinates or (prediction_coordinates and gold.pointed):
        # Named coordinates on one side only; the other side lists them in order, as a point or a bare list.
        coordinates = gold_coordinates or prediction_coordinates
        unnamed = prediction if gold_coordinates else gold
        if not unnamed.pointed and (unnamed.opening or _names(unnamed)):
            return False
        values = [coordinates[name] for name in _in_order(list(coordinates))]
        pairs = zip(values, unnamed.items, strict=True)
        return all(same(*(pair if gold_coordinates else pair[::-1]), symbolic) for pair in pairs)
    if not _same_kind(gold, prediction):
        return False
    if gold.ordered or prediction.ordered:
        return all(
            same(gold_item, prediction_item, symbolic)
            for gold_item, prediction_item in zip(gold.items, prediction.items, strict=True)
        )
    remaining = list(prediction.items)
    for item in gold.items:
        # Try equal spellings first, which avoids symbolic comparisons with the other items.
        remaining.sort(key=lambda candidate: canonical(candidate) != canonical(item))
        for i, candidate in enumerate(remaining):
            if same(item, candidate, symbolic):
                del remaining[i]
                break
        else:
            return False
    return True


def _same_kind(gold: Sequence, prediction: Sequence) -> bool:
    """Whether both are intervals, points, unions or sets; a bare list may stand for a point, union or set."""
    if (gold.opening, gold.closing) == (prediction.opening, prediction.closing):
        return not (gold.pointed and prediction.name and len(gold.items) != 2)
    if not prediction.opening:
        return (gold.pointed and not _names(prediction)) or gold.opening in (r"\{", r"\cup")
    return not gold.opening and (prediction.pointed or prediction.opening in (r"\{", r"\cup"))


def _coordinates(sequence: Sequence) -> dict[str, Answer]:
    """The items of ``x = 1, y = 2`` by name; empty if a name is missing or repeated."""
    names = _names(sequence)
    if sequence.opening or len(names) < max(2, len(sequence.items)) or len({*names}) < len(names):
        return {}
    items = (replace(item, name="") for item in sequence.items if isinstance(item, Number | Formula))
    return dict(zip(names, items, strict=True))


def _names(sequence: Sequence) -> list[str]:
    return [item.name for item in sequence.items if isinstance(item, Number | Formula) and item.name]


def _in_order(names: list[str]) -> list[str]:
    """Consecutive letters or indices (x, y, z; x_1, x_2) sorted; other names as written."""
    letters = sorted(names)
    steps = {(len(a), len(b), ord(b[-1]) - ord(a[-1])) for a, b in itertools.pairwise(letters)}
    stems = {name[:-1] for name in names}
    if len(steps) == 1 and next(iter(steps))[2] == 1 and len(stems) == 1:
        return letters
    return names
