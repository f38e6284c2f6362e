r"""Properties of verdicts: the gold answer is correct in every spelling, and the repeated question never is."""

import itertools
import re
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gagpo.envs.math.verify.answers import canonical
from gagpo.envs.math.verify.compare import needs_algebra, same
from gagpo.envs.math.verify.pool import VerifyPool
from gagpo.envs.math.verify.reading import Unreadable, read
from gagpo.envs.math.verify.verifier import Verifier


class Untouchable:
    """A pool for answers that must not need algebra."""

    def compare(self, gold, prediction):
        pytest.fail(f"{prediction!r} for {gold!r} went to the pool")


AT_ONCE = Verifier(pool=Untouchable())


@pytest.fixture(scope="module")
def pool():
    with VerifyPool() as pool:
        yield pool


def right(gold: str, answer: str, verifier: Verifier = AT_ONCE) -> bool:
    return verifier.verify(gold, rf"So it is \boxed{{{answer}}}.").correct


def spelled(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    symbol = "-" if value < 0 else ""
    return rf"{symbol}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


ends = st.fractions(-50, 50, max_denominator=12)
letters = st.sampled_from("xytnk")
spellings_of_a_formula = st.sampled_from(
    ["{}", "${}$", "{}.", r"\({}\)", r"\; {} \,", r"\displaystyle {}", r"\boxed{{{}}}", "`{}`", r"\left( {} \right)"]
)


@st.composite
def intervals(draw):
    r"""The two ends, None for an infinite one, and their brackets."""
    low, high = sorted(draw(st.lists(ends, min_size=2, max_size=2, unique=True)))
    type_name = draw(st.sampled_from(["both", "both", "low", "high"]))
    opening = draw(st.sampled_from("([")) if type_name != "high" else "("
    closing = draw(st.sampled_from(")]")) if type_name != "low" else ")"
    return (None if type_name == "high" else low), (None if type_name == "low" else high), opening, closing


def as_interval(low, high, opening, closing):
    bounds = (r"-\infty" if low is None else spelled(low)), (r"\infty" if high is None else spelled(high))
    return f"{opening}{bounds[0]}, {bounds[1]}{closing}"


def conditions(low, high, opening, closing, name):
    """The inequalities of the interval, each written in both directions."""
    below, above = (r"\le" if opening == "[" else "<"), (r"\le" if closing == "]" else "<")
    mirrored = {"<": ">", r"\le": r"\ge"}
    results = []
    if low is not None:
        results.append((f"{spelled(low)} {below} {name}", f"{name} {mirrored[below]} {spelled(low)}"))
    if high is not None:
        results.append((f"{name} {above} {spelled(high)}", f"{spelled(high)} {mirrored[above]} {name}"))
    return results


def solved(interval, name):
    """Ways to write an interval as a solved relation."""
    segments = conditions(*interval, name)
    for chosen in itertools.product(*segments):
        for order in itertools.permutations(chosen):
            for joint in (r" \text{ and } ", " and ", ", ", r" \land "):
                yield joint.join(order)
    low, high, opening, closing = interval
    if low is not None and high is not None:
        below, above = (r"\le" if opening == "[" else "<"), (r"\leq" if closing == "]" else "<")
        yield f"{spelled(low)} {below} {name} {above} {spelled(high)}"
        below, above = (r"\geq" if opening == "[" else ">"), (r"\ge" if closing == "]" else ">")
        yield f"{spelled(high)} {above} {name} {below} {spelled(low)}"


@given(intervals(), letters, spellings_of_a_formula)
@settings(deadline=None, max_examples=15)
def test_an_interval_is_right_in_every_solved_spelling(interval, name, spelling):
    gold = as_interval(*interval)
    assert right(gold, gold) and right(gold, rf"{name} \in {gold}")
    for relation in solved(interval, name):
        assert right(gold, relation) and right(gold, spelling.format(relation)), relation
        assert right(relation, gold) and right(gold, rf"\{{{name} \mid {relation}\}}"), relation
        assert right(gold, rf"\{{{name} \in \mathbb{{R}} : {relation}\}}"), relation
        assert canonical(read(relation)) == canonical(read(gold))


@given(intervals(), letters, ends, ends)
@settings(deadline=None, max_examples=20)
def test_an_unsolved_relation_is_never_an_interval(interval, name, factor, summand):
    """No spelling of the question's inequality is its own answer, and no algebra is needed to decide it."""
    assume(factor not in (0, 1))
    low, high, opening, closing = interval
    golds = [as_interval(*interval), *itertools.islice(solved(interval, name), 3)]
    questions = []
    for bound, less in ((low, False), (high, True)):
        if bound is None:
            continue
        strict = {low: opening, high: closing}[bound] in "()"
        symbol = {(True, True): "<", (True, False): r"\le", (False, True): ">", (False, False): r"\ge"}
        questions += [
            f"{spelled(factor)}{name} {symbol[less == (factor > 0), strict]} {spelled(factor * bound)}",
            f"{name} + {spelled(summand)} {symbol[less, strict]} {spelled(bound + summand)}",
            f"{spelled(bound + summand)} {symbol[not less, strict]} {name} + {spelled(summand)}",
            f"{name} - {spelled(bound)} {symbol[less, strict]} 0",
            f"-{name} {symbol[not less, strict]} {spelled(-bound)}",
        ]
    if low is not None and high is not None and (opening == "[") == (closing == "]"):
        symbol, middle, half = ("<" if opening == "(" else r"\le"), (low + high) / 2, (high - low) / 2
        questions += [
            f"|{name} - {spelled(middle)}| {symbol} {spelled(half)}",
            f"({name} - {spelled(low)})({name} - {spelled(high)}) {symbol} 0",
            f"{name}^2 + {spelled(-low - high)}{name} {symbol} {spelled(-low * high)}",
            f"{spelled(low + 1)} {symbol} {name} + 1 {symbol} {spelled(high + 1)}",
        ]
    for gold, question in itertools.product(golds, questions):
        assert not right(gold, question), (gold, question)
        assert not right(gold, rf"\{{{name} \mid {question}\}}"), (gold, question)
        assert not right(gold, rf"{question} \text{{ and }} {name} \in \mathbb{{R}}"), (gold, question)


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=2, unique=True), letters, st.integers(2, 9))
@settings(deadline=None, max_examples=50)
def test_an_equation_is_never_its_own_roots(roots, name, factor):
    first, last = roots[0], roots[-1]
    golds = [", ".join(map(str, roots)), r" \text{ or } ".join(f"{name} = {root}" for root in roots)]
    questions = [
        f"({name} - {first})({name} - {last}) = 0",
        f"{name}^2 + {-first - last}{name} = {-first * last}",
        f"{name} - {first} = 0",
        f"{factor}{name} + {first} = {(factor + 1) * first}",
        r" \text{ or } ".join(f"{name} - {root} = 0" for root in roots),
    ]
    for gold in golds:
        assert right(gold, gold) and right(gold, rf"{name} = " + ", ".join(map(str, roots)))
        assert right(gold, r" \text{ or } ".join(f"{root} = {name}" for root in roots))
        for question in questions:
            assert not right(gold, question), (gold, question)


@given(st.permutations("xyz"), st.lists(st.integers(-9, 9), min_size=3, max_size=3), st.permutations(range(3)))
@settings(deadline=None, max_examples=75)
def test_coordinates_are_matched_by_name(order, values, other):
    """``y = 4, x = 3`` is the point (3, 4) in any order; swapped values are not."""
    named = dict(zip("xyz", values, strict=True))
    point = "({}, {}, {})".format(*values)
    written = ", ".join(f"{name} = {named[name]}" for name in order)
    tuples = f"({', '.join(order)}) = ({', '.join(str(named[name]) for name in order)})"
    swapped = [values[i] for i in other]
    wrong = ", ".join(f"{name} = {dict(zip('xyz', swapped, strict=True))[name]}" for name in order)
    for gold in (point, "x = {}, y = {}, z = {}".format(*values), tuples, written):
        assert right(gold, gold) and right(gold, written) and right(gold, tuples) and right(gold, point)
        assert right(gold, ", ".join(map(str, values)))
        if swapped != values:
            assert not right(gold, wrong) and not right(gold, "({}, {}, {})".format(*swapped))
            assert not right(gold, ", ".join(map(str, swapped)))
        assert not right(gold, r"\{" + ", ".join(map(str, values)) + r"\}")


@given(st.lists(st.integers(-20, 20), min_size=4, max_size=4), st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_the_entries_of_a_matrix_are_compared_like_answers(entries, part):
    def matrix(kind, *rows):
        return rf"\begin{{{kind}}} {rows[0]} & {rows[1]} \\ {rows[2]} & {rows[3]} \end{{{kind}}}"

    gold = matrix("pmatrix", *entries)
    a, b, c, d = entries
    for other in (gold, matrix("bmatrix", *entries), f"M = {gold}", f"[[{a}, {b}], [{c}, {d}]]"):
        assert right(gold, other)
    doubled = matrix("pmatrix", *(2 * entry for entry in entries))
    assert right(doubled, f"2{gold}") and right(doubled, rf"2 \cdot {gold}")
    assert not right(gold, matrix("pmatrix", f"{a - part} + {part}", b, c, d))
    assert not right(gold, matrix("pmatrix", a, c, b, d) + "^T")
    if b != c:
        assert not right(gold, matrix("pmatrix", a, c, b, d))


QUANTITIES = st.tuples(st.integers(0, 40), st.integers(0, 11))


@given(QUANTITIES, st.sampled_from([("feet", "inches", 12), ("ft", "in", 12), ("pounds", "ounces", 16)]))
@settings(deadline=None)
def test_a_quantity_in_two_units_equals_one_in_either(quantity, units):
    (large, small), (first, second, ratio) = quantity, units
    gold = f"{large} {first} {small} {second}"
    assert right(gold, gold) and right(gold, f"{large * ratio + small} {second}")
    assert right(f"{large * ratio + small} {second}", gold)
    assert right(gold, f"{spelled(large + Fraction(small, ratio))} {first}")
    assert not right(gold, f"{large * ratio + small + 1} {second}")


DUMMIES = ["{} + 0{v}", "{} + {v} - {v}", r"{} \cdot {v}^0", r"\frac{{{} {v}}}{{{v}}}", r"{} \cdot \frac{{{v}}}{{{v}}}"]
COMPUTED = [
    # gold answer, the same as a function of a constant
    (r"\sqrt{3}", r"\tan(%s)", r"\frac{\pi}{3}"),
    (r"\frac{\sqrt{2}}{2}", r"\sin(%s)", r"\frac{\pi}{4}"),
    (r"\frac{\pi}{4}", r"\arctan(%s)", "1"),
    (r"5\pi", r"\sqrt{%s}\pi", "25"),
    (r"\sqrt{3} x", r"x\tan(%s)", r"\frac{\pi}{3}"),
    (r"\frac{\pi}{4} + x", r"\arctan(%s) + x", "1"),
    ("3x", r"\log_2(%s) x", "8"),
]


@pytest.mark.parametrize(("gold", "function", "argument"), COMPUTED)
def test_a_variable_without_effect_does_not_hide_a_constant(pool, gold, function, argument):
    verifier = Verifier(pool=pool)
    assert not right(gold, function % argument, verifier)
    for dummy, variable in itertools.product(DUMMIES, "tx" if "x" in gold else "t"):
        answer = function % dummy.format(argument, v=variable)
        assert not right(gold, answer, verifier), answer


@given(
    coefficients=st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    shift=st.integers(1, 9),
    spelling=spellings_of_a_formula,
)
@settings(deadline=None, max_examples=12)
def test_a_polynomial_is_right_in_every_finished_spelling(pool, coefficients, shift, spelling):
    verifier = Verifier(pool=pool)
    a, b, c = coefficients
    assume(a and b and c)
    gold = f"{a}x^2 + {b}x + {c}"
    for answer in (
        f"{c} + {b}x + {a}x^{{2}}",
        f"{a}*x**2 + {b}*x + {c}",
        f"y = {gold}",
        f"{gold} = y",
        gold.replace(" ", ""),
    ):
        assert right(gold, answer, verifier) and right(gold, spelling.format(answer), verifier), answer
    for unfinished in (f"{a}x^2 + {b - shift}x + {shift}x + {c}", f"{a}x^2 + {b}x + {c - shift} + {shift}"):
        assert not right(gold, unfinished, verifier), unfinished
    assert not right(gold, f"{a}x^2 + {b}x + {c + shift}", verifier)
    assert not right(gold, gold.replace("x", "z"), verifier)


@given(
    base=st.integers(2, 12),
    power=st.integers(60, 900),
    summand=st.integers(-3, 3),
    other=st.integers(-3, 3),
    form=st.sampled_from(
        ["{}", r"\\sqrt{{{}}}", "e^{{-({})}}", r"\\frac{{1}}{{{}}}", r"\\pi ({})", r"\\{{{}, 3\\}}", "({}, 3)"]
    ),
)
@settings(deadline=None, max_examples=15)
def test_neighbours_of_a_large_constant_differ(pool, base, power, summand, other, form):
    gold, answer = (form.format(f"{base}^{{{power}}} + {term}") for term in (summand, other))
    assert Verifier(pool=pool).verify(gold, rf"\boxed{{{answer}}}").correct == (summand == other)


PIECES = re.findall(
    r"\S+",
    r"""1 2 3 0.5 , ; x y e i \frac{1}{2} \frac{ \sqrt{ } { ( ) [ ] ^ _ + - * / = < > \le \ne \pm \cup \setminus \in \{
    \} | and or \text{ \begin{pmatrix} \end{pmatrix} & \\ \mathbb{R} % $ \$ ' " ! ½ √ ... \infty \approx \implies sqrt(
    pi zero one hundred half feet inches cm per \int dx \sum_{k=1} \begin{cases} \end{cases} \mathbf{i} \pmod{ base th
    \cdot
    e^{ \ln \overline{ P( f(x) A B) \boxed{ is at least all real numbers no solution""",
)


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.sampled_from(["", " "]), st.sampled_from(range(8)))
@settings(deadline=None, max_examples=200)
def test_any_pieces_get_a_verdict_and_match_themselves(pieces, joint, which):
    golds = ["7", "1/2", r"(2, \infty)", r"\{1, 2\}", "x = 3, y = 4", r"\sqrt{2}", "x^2 + y^2 = 4", r"\emptyset"]
    text = joint.join(pieces)

    class Refusing:
        def compare(self, gold, prediction):
            return "mismatch"

    verdict = Verifier(pool=Refusing()).verify(golds[which], rf"\boxed{{{text}}}")
    assert verdict.reason in ("match", "mismatch", "no_answer", "unparsable")
    try:
        answer = read(text)
    except Unreadable:
        return
    assert same(answer, answer, needs_algebra)
