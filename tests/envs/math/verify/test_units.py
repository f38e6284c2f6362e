"""Units after a number: prefixes, multiples and words that change the number."""

import pytest

from gagpo.envs.math.verify.reading import read
from gagpo.envs.math.verify.spelling.factors import LETTERS, MULTIPLES, OPERATIONS
from gagpo.envs.math.verify.spelling.units import unit
from gagpo.envs.math.verify.verifier import Verifier

PREFIXES = {
    "Q": 30,
    "R": 27,
    "Y": 24,
    "Z": 21,
    "E": 18,
    "P": 15,
    "T": 12,
    "G": 9,
    "M": 6,
    "k": 3,
    "h": 2,
    "da": 1,
    "d": -1,
    "c": -2,
    "m": -3,
    "u": -6,
    "n": -9,
    "p": -12,
    "f": -15,
    "a": -18,
    "z": -21,
    "y": -24,
    "r": -27,
    "q": -30,
}
SYMBOLS = (
    "m",
    "g",
    "s",
    "A",
    "mol",
    "K",
    "cd",
    "Hz",
    "N",
    "Pa",
    "J",
    "W",
    "C",
    "V",
    "F",
    "S",
    "Wb",
    "T",
    "L",
    "l",
    "B",
    "eV",
)


VERIFIER = Verifier()


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    VERIFIER.close()


def correct(gold, answer):
    return VERIFIER.verify(gold, rf"\boxed{{{answer}}}").correct


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_every_prefix_of_every_unit(symbol):
    base = unit(symbol)
    for prefix, exponent in PREFIXES.items():
        if f"{prefix}{symbol}" in ("dB", "cd", "Pa", "ft", "pt"):  # units of their own
            continue
        prefixed = unit(prefix + symbol)
        assert prefixed is not None and prefixed.dimension == base.dimension
        assert prefixed.size == base.size * 10**exponent if exponent > 0 else prefixed.size * 10**-exponent == base.size
        if prefix not in ("a", "p"):  # 5 am and 5 pm are times
            assert not correct(rf"5 \text{{ {prefix}{symbol}}}", rf"5 \text{{ {symbol}}}")
            assert not correct(rf"5 \text{{ {symbol}}}", rf"5 \text{{ {prefix}{symbol}}}")


@pytest.mark.parametrize("word", [*sorted(MULTIPLES), *sorted(OPERATIONS - {"decimal"}), *LETTERS])
def test_a_word_that_changes_the_number_does_not_pay(word):
    assert not correct("5", rf"5 \text{{ {word}}}")
    assert not correct("5", rf"\$5 \text{{ {word}}}")
    if word not in ("hex", "binary", "octal", "hexadecimal", "ternary"):
        assert not correct(r"\sqrt{7}", rf"\sqrt{{7}} \text{{ {word}}}")


def test_multiples_have_their_value():
    for word, factor in MULTIPLES.items():
        assert read(f"5 {word}").value == 5 * factor
    assert read(r"\$5\text{M}").value == 5_000_000 and read(r"5\text{M}").multiple == 10**6
    assert correct("5000000", r"5\text{M}") and correct(r"5 \text{ M}", r"5 \text{ M}")


@pytest.mark.parametrize(
    "word", ["万", "千元", "亿人", "阶乘", "分之1", "厘米", "тысяч", "млн рублей", "millón", "triệu"]
)
def test_a_word_of_other_letters_is_not_what_was_counted(word):
    """It may be a multiple, a unit or an operation."""
    for answer in (rf"15\text{{{word}}}", rf"15 \text{{ {word}}}", rf"\$15 \text{{ {word}}}"):
        assert not correct("15", answer) and not correct(r"15 \text{ m}", answer)
    assert correct("15", r"15\text{元}") and correct(r"15\text{元}", "15")


@pytest.mark.parametrize("product", ["2rs", "2as", "3ag", "2gh", "2hg", "2cs", "4zs"])
def test_letters_without_a_space_stay_a_product(product):
    assert not correct(product[0], product) and correct(product, product[0] + product[:0:-1])
