r"""Verdicts: hand-labelled pairs, corrections of the library, and properties."""

import decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import math_verify
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.math.verify.answers import Number, canonical
from gagpo.envs.math.verify.extract import extract
from gagpo.envs.math.verify.pool import VerifyPool
from gagpo.envs.math.verify.reading import Unreadable, read
from gagpo.envs.math.verify.verifier import GoldError, Verifier, read_gold

DISAGREEMENTS = {
    # Words are compared as words, so a product of letters that spells one must keep its order.
    ("abc", r"So it is \boxed{cba}."),
}
"""Where the verifier differs from the label."""

LIBRARY_WRONG = [
    # gold, response, verdict of the library, why the opposite is correct
    ("7", r"\boxed{3 + 4}", True, "arithmetic the question asked for was not carried out"),
    ("7", r"\boxed{14/2}", True, "the same, written as a division"),
    ("0.0000001", r"\boxed{0.0000002}", True, "decimals are rounded to six places, whatever their size"),
    ("act", r"\boxed{cat}", True, "words are read as products of letters, which commute"),
    (r"5\text{ cm}", r"\boxed{5 m}", True, "units are thrown away"),
    (r"5\text{ cm}", r"\boxed{5 kg}", True, "units are thrown away"),
    (r"\{-1, 0, 1\}", r"\boxed{(1, 0, -1)}", True, "a point is not a set"),
    ("2,3", r"\boxed{(3,2)}", True, "a point in another order is not the list"),
    ("7", r"First \boxed{6}, no: \boxed{7}", False, "several boxes become a set; the last one is the answer"),
    ("1500", r"\boxed{1.5e3}", False, "scientific notation with an e"),
    ("1234567", r"\boxed{1\,234\,567}", False, "thin spaces between thousands"),
    ("7", r"\boxed{\text{seven}}", False, "number words"),
    (r"\frac{1}{3}", r"\boxed{0.\overline{3}}", False, "repeating decimals"),
    (r"\frac{7}{2}", r"\boxed{3 1/2}", False, "mixed numbers without LaTeX"),
    ("B", r"\boxed{(B) 12}", False, "a choice with the value it stands for"),
    (r"\$0.50", r"\boxed{50 cents}", False, "the same amount in another unit"),
    ("Yes", r"\boxed{Yes, it does}", False, "a plain reply with an explanation"),
    ("[0, 1]", r"\boxed{0 \le x \le 1}", False, "an interval given as an inequality"),
    (r"(-\infty,-1)\cup(2,\infty)", r"\boxed{x < -1 or x > 2}", False, "a union given as inequalities"),
    (r"\emptyset", r"\boxed{\varnothing}", False, "two signs for the empty set"),
]


class Pair(NamedTuple):
    section: str
    right: bool
    gold: str
    response: str


def labelled(names: tuple[str, ...] = ("verdicts", "gaming", "spellings", "forms")) -> list[Pair]:
    """The pairs of the files with their headings; the files describe the format."""
    pairs = []
    for name in names:
        section = ""
        for line in (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("# ") or not line:
                section = f"{name}, {line[2:]}"
                continue
            label, gold, response = (segment.strip() for segment in line.split(" | "))
            marked = "responses" in section or any(
                mark in response for mark in (r"\boxed", "####", "nswer", "<think", "We add", "I do not", "It takes")
            )
            response = response.replace(r"\n####", "\n####") if marked else rf"So it is \boxed{{{response}}}."
            pairs.append(Pair(section, label == "+", gold, response))
    return pairs


PAIRS = labelled()
RARE = labelled(("rare",))


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    with VerifyPool() as pool:
        yield Verifier(pool=pool)


@pytest.mark.parametrize("section", list(dict.fromkeys(pair.section for pair in PAIRS)))
def test_agreement_with_a_careful_person(verifier, section):
    pairs = [pair for pair in PAIRS if pair.section == section]
    differ = {(p.gold, p.response) for p in pairs if verifier.verify(p.gold, p.response).correct != p.right}
    assert differ == DISAGREEMENTS & {(p.gold, p.response) for p in pairs}


def test_a_rare_spelling_may_be_rejected_but_nothing_wrong_is_paid(verifier):
    """The floor is what was right when the spellings were set apart."""
    verdicts = [(pair, verifier.verify(pair.gold, pair.response).correct) for pair in RARE]
    assert [pair for pair, correct in verdicts if correct and not pair.right] == []
    assert sum(correct for _, correct in verdicts) >= 1


def test_the_pairs_are_many_and_of_both_kinds():
    new = [pair[1:] for pair in PAIRS if not pair.section.startswith("verdicts")]
    assert len(PAIRS) >= 1300 and 0.3 < sum(pair.right for pair in PAIRS) / len(PAIRS) < 0.7
    assert len(new) == len({*new}) and len(DISAGREEMENTS) <= 0.001 * len(PAIRS)
    both = {(pair.gold, pair.response): pair.right for pair in PAIRS}
    assert all(both[pair.gold, pair.response] is pair.right for pair in PAIRS)


@pytest.mark.parametrize(("gold", "response", "library", "why"), LIBRARY_WRONG)
def test_wrong_verdicts_of_the_library_are_corrected(verifier, gold, response, library, why):
    assert math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(response)) is library, why
    assert verifier.verify(gold, response).correct is not library, why


def test_every_gold_answer_matches_itself(verifier):
    for gold in sorted({pair.gold for pair in PAIRS}):
        for response in (rf"\boxed{{{gold}}}", f"The answer is ${gold.strip('$')}$."):
            assert verifier.verify(gold, response).reason == "match", (gold, response)


def test_reasons(verifier):
    def reason(gold, response):
        return verifier.verify(gold, response).reason

    assert reason("7", r"\boxed{7}") == "match"
    assert reason("7", r"\boxed{8}") == "mismatch"
    assert reason("7", "no idea") == "no_answer"
    assert reason("7", r"\boxed{\text{}}") == "unparsable"
    assert reason("x + 1", r"\boxed{\begin{cases} x \end}") == "unparsable"


@pytest.mark.parametrize("gold", ["", "  ", "$$", r"\frac{1}{2", "9" * 2000])
def test_an_unreadable_gold_answer_is_an_error(gold):
    with pytest.raises(GoldError, match="unreadable gold answer"):
        read_gold(gold)


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("0.5", "0.5%", False),
        ("0.5%", "0.5", False),
        ("0.5%", "0.005", True),
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50", "50%", True),
    ],
)
def test_percentages(verifier, gold, answer, verdict):
    assert verifier.verify(gold, rf"\boxed{{{answer}}}").correct is verdict


def test_a_bold_letter_answers_a_question_with_choices_only(verifier):
    assert verifier.verify("D", "So it must be **D**").reason == "match"
    assert verifier.verify("D", "So it must be **B**.").reason == "mismatch"
    assert verifier.verify("4", "So it must be **D**").reason == "no_answer"


def test_the_process_and_the_worker_give_the_same_verdict(verifier):
    """The worker, asked directly, must agree where no algebra is needed."""
    for pair in PAIRS:
        results = extract(pair.response)
        verdict = verifier.verify(pair.gold, pair.response)
        if results is not None and verdict.reason in ("match", "mismatch"):
            assert verifier.pool.compare(pair.gold, results.text) == verdict.reason, pair


class Refusing:
    """A pool that rejects everything, to test the in-process part."""

    def compare(self, gold, prediction):
        return "mismatch"


rationals = st.fractions(max_denominator=10**6).filter(lambda q: abs(q) < 10**9)


@given(rationals, rationals)
@settings(deadline=None)
def test_fractions_match_exactly_when_they_are_equal(gold, given_):
    def spellings(q):
        yield str(q)
        yield rf"\frac{{{q.numerator}}}{{{q.denominator}}}" if q.denominator > 1 else f"{q.numerator:,}"
        yield rf"-\frac{{{-q.numerator}}}{{{q.denominator}}}" if q < 0 and q.denominator > 1 else f"${q}$"

    for spelling in spellings(gold):
        for answer in spellings(given_):
            assert Verifier().verify(spelling, rf"\boxed{{{answer}}}").correct == (gold == given_)
        for answer in spellings(gold):
            assert Verifier().verify(spelling, rf"\boxed{{{answer}}}").correct


@given(st.integers())
@settings(deadline=None)
def test_the_shortcut_for_integers_agrees_with_the_full_reading(value):
    assert read(f"{value}") == read(f"${value}$") == Number(Fraction(value))


@given(rationals, st.integers(6, 12))
@settings(deadline=None)
def test_a_decimal_matches_what_it_rounds(value, places):
    with decimal.localcontext() as context:
        context.prec = 60
        exact = decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)
        rounded = exact.quantize(decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_EVEN)
        beside = rounded + 2 * decimal.Decimal(1).scaleb(-places)
    digits = len(str(abs(rounded)).replace(".", "").lstrip("0"))
    if digits >= 6 or Fraction(rounded) == value:
        assert Verifier().verify(str(value), rf"\boxed{{{rounded:f}}}").correct
    assert not Verifier().verify(str(value), rf"\boxed{{{beside:f}}}").correct


@given(st.text(max_size=60), st.sampled_from(["7", "1/2", "x + 1", "(1, 2)", "B", "Monday"]))
@settings(deadline=None, max_examples=150)
def test_any_text_gets_a_verdict(text, gold):
    verdict = Verifier(pool=Refusing()).verify(gold, rf"\boxed{{{text}}}")
    assert verdict.reason in ("match", "mismatch", "no_answer", "unparsable")


@given(st.text(alphabet="0123456789.,-/ {}()[]\\frac%$^_xeand", max_size=40))
@settings(deadline=None, max_examples=250)
def test_reading_is_stable_under_its_own_spelling(text):
    """The canonical spelling of a number is read as the same number."""
    try:
        answer = read(text)
    except Unreadable:
        return
    if isinstance(answer, Number) and not answer.base:
        again = read(canonical(answer))
        assert isinstance(again, Number) and again.value == answer.value and again.percent == answer.percent
