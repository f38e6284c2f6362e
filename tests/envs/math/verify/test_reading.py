"""Reading answers: kind, names, and whether a relation is solved."""

from fractions import Fraction

import pytest

from gagpo.envs.math.verify.answers import (
    NOTHING,
    Answer,
    Choice,
    Formula,
    Matrix,
    Number,
    Relation,
    Sequence,
    Words,
    canonical,
)
from gagpo.envs.math.verify.reading import MAX_DEPTH, MAX_ITEMS, Unreadable, read
from gagpo.envs.math.verify.spelling.units import unit

KINDS: list[tuple[type[Answer], list[str]]] = [
    (Number, ["7", "x = 7", "7 = x", "seven", r"3\frac{1}{2}", "2 feet 6 inches", r"\$5", "50 percent", "5 (five)"]),
    (Number, [r"\gcd(12, 18) = 6", r"P(A \cap B) = 0.3", r"5 \pmod{7}", "1011_2", "1011 base 2", "3:2", "0.333..."]),
    (Choice, ["B", "(B)", "b)", "(B) 12", "Option B", r"\textbf{(B)}"]),
    (Words, ["Monday", r"\text{even}", "6:30 pm", "does not exist", "DNE", "Yes"]),
    (Sequence, ["1, 2", r"\{1, 2\}", "(1, 2)", "x = 1 or x = 2", r"\pm 2", "x = 1, y = 2", r"\langle 1, 2 \rangle"]),
    (Sequence, ["x > 2", "2 < x", "-2 < x < 5", "5 > x > -2", "x > -2 and x < 5", r"x \ne 2", "x is at least 3"]),
    (
        Sequence,
        [r"\mathbb{R}", "all real numbers", r"\emptyset", r"\{\}", "no solution", r"\mathbb{R} \setminus \{2\}"],
    ),
    (Matrix, [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "[[1, 2], [3, 4]]", r"2\begin{bmatrix} 1 & 2 \end{bmatrix}"]),
    (Formula, ["2x + 1", "y = 2x + 1", "2x + 1 = y", r"\sqrt{2}", r"\infty", r"5\pi \text{ cm}", "3 + 4", "2^3"]),
    (Relation, ["2x + 1 > 5", "2x = 4", "x + y = 3", "x^2 < 4", "|x| < 2", "-2 < 2x < 4", "x < -1 and x > 3", "5 = 7"]),
    (Relation, [r"\{x \mid x^2 < 4\}", r"x \ge x^2", "y > 2x + 1", "3 + 4 = 8", r"7 \approx 8", "x = y + 1 = 3x"]),
]


@pytest.mark.parametrize(
    ("kind", "answer"), [(kind, answer) for kind, answers in KINDS for answer in answers], ids=lambda part: str(part)
)
def test_kinds(kind, answer):
    assert type(read(answer)) is kind


NAMES = [
    ("3 = x", "x"),
    ("x_{1} = 3", "x_1"),
    (r"\theta = 3", r"\theta"),
    ("f(2) = 3", "f(2)"),
    ("x > 3", "x"),
    ("3 < x", "x"),
    (r"t \in [0, 1)", "t"),
    ("2x + 1 = y", "y"),
    ("total cost = 3", ""),
    (r"\text{Area} = 3", ""),
    (r"\angle ABC = 3", ""),
]


@pytest.mark.parametrize(("answer", "name"), NAMES)
def test_names(answer, name):
    assert read(answer).name == name


SAME = [
    ["x > 3", "3 < x", r"x \in (3, \infty)", "x is greater than 3", r"\{x : x > 3\}", "(3, +∞)", "]3, inf["],
    [r"-2 \le x < 5", r"5 > x \ge -2", "x < 5, x >= -2", "[-2, 5[", r"\{x \in \mathbb{R} \mid -2 <= x < 5\}"],
    [r"x \ne 2", r"\mathbb{R} \setminus \{2\}", "all real numbers except 2", r"x < 2 \text{ or } x > 2"],
    [r"x \ne 2, 3", r"x \neq 2 \text{ and } x \neq 3", r"\mathbb{R} - \{2, 3\}", r"x < 3, x \ne 2 \text{ or } x > 3"],
    [r"\mathbb{R}", r"(-\infty, \infty)", r"-\infty < x < \infty", "every real number", r"x \in \mathbb{R}"],
    [r"\emptyset", r"\{ \}", "no solutions", "There are no real solutions.", "∅"],
    ["2 feet 6 inches", "2'6\"", "2 ft. 6 in."],
    ["x = 1, y = 2", "y = 2 and x = 1", "(x, y) = (1, 2)", r"\begin{cases} x = 1 \\ y = 2 \end{cases}"],
]


@pytest.mark.parametrize("answers", SAME, ids=lambda answers: answers[0])
def test_equal_answers_are_one_vote(answers):
    assert len({canonical(read(answer)) for answer in answers}) == 1


def test_conditions_are_intersected():
    both = read("x > 1 and x < 7 and x < 5")
    assert [item.value for item in both.items] == [1, 5] and (both.opening, both.closing) == ("(", ")")
    assert read(r"x \ge 1, x > 1").opening == "("
    assert canonical(read("x > 1 or x > 2 and x < 3")) == canonical(read(r"(1, \infty) \cup (2, 3)"))
    assert canonical(read(r"\mathbb{R} \setminus [1, 2)")) == canonical(read(r"x < 1 \text{ or } x \ge 2"))
    # A comma means "and" unless that is empty, then "or".
    assert canonical(read("x < 1, x > 2")) == canonical(read("x < 1 or x > 2"))
    assert isinstance(read(r"x > \sqrt{2} and x > \sqrt{3}"), Relation)


@pytest.mark.parametrize("whole", [r"\mathbb{R}", "(0, 1)", "7", r"\{1\}"])
@pytest.mark.parametrize(
    "rest", [r"x \cup y", r"\{1\} \cup (2, 3)", r"\mathbb{R}", "7", r"\{\}", r"(1, 2) \cup (3, 4, 5)"]
)
def test_a_difference_with_something_that_is_not_a_region_can_be_read(whole, rest):
    assert read(rf"{whole} \setminus {rest}")
    assert read(rf"{whole} \setminus ({rest})")


def test_the_empty_set_is_not_a_set_with_the_empty_set():
    assert read(r"\varnothing") == NOTHING
    assert read(r"\{\emptyset\}") != NOTHING and read(r"\{0\}") != NOTHING


def test_quantities():
    assert read("1 hour 30 minutes").value == Fraction(3, 2)
    assert read("3 pounds 8 ounces").value == Fraction(7, 2)
    assert read("6 feet 12 inches") != read("7 feet")  # not a usual quantity
    assert unit("meters per second squared") == unit("m/s^2") == unit(r"m s^{-2}")
    assert unit("km/h").size == Fraction(1000, 3600) and unit("mph").dimension == unit("km/h").dimension
    assert unit("liter") == unit("L") and unit("mL").dimension == unit("cm^3").dimension
    assert read("10 base zero") and read("1,234.").value == 1234
    assert unit("10^&inches") is None and unit("cm^x") is None and unit("m^2^2") is None
    assert unit("euro").dimension != unit("dollar").dimension


@pytest.mark.parametrize(
    "answer", ["", " ", "$$", r"\frac{1}{2", "(" * (MAX_DEPTH + 1) + "x" + ")" * 17, "x" * 1001, r"\implies"]
)
def test_unreadable_answers(answer):
    with pytest.raises(Unreadable):
        read(answer)


def test_long_lists_and_matrices_are_formulas():
    assert isinstance(read(", ".join(["x"] * (MAX_ITEMS + 1))), Formula)
    assert isinstance(read(r"\begin{pmatrix}" + "1 & " * MAX_ITEMS + r"1 \end{pmatrix}"), Formula)
