"""Finding the final answer in a response, by each method."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.math.verify.extract import MAX_ANSWER, METHODS, TAIL, Extraction, extract

FOUND = [
    # method, response, answer
    ("boxed", r"\boxed{7}", "7"),
    ("boxed", r"first \boxed{6}, then \boxed{7}", "7"),
    ("boxed", r"\boxed{\frac{1}{2}} and so on", r"\frac{1}{2}"),
    ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    ("boxed", r"\boxed{\boxed{7}}", "7"),
    ("boxed", r"\boxed 7", "7"),
    ("boxed", r"\fbox{7}", "7"),
    ("boxed", r"\boxed{7} but \boxed{8", "7"),
    ("boxed", r"\boxed{7} but \boxed{}", "7"),
    ("boxed", r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
    ("hashes", "work\n#### 12", "12"),
    ("hashes", "#### 1\n#### 2\nthanks", "2"),
    ("phrase", "The answer is 7.", "7"),
    ("phrase", "the answer is: 7", "7"),
    ("phrase", "Final Answer: $\\frac{1}{2}$.", r"\frac{1}{2}"),
    ("phrase", "**Answer:** 7", "7"),
    ("phrase", "Answer = 7", "7"),
    ("phrase", "The answer is 7. Wait, the answer is 8.", "8"),
    ("phrase", "The answer is $7$ apples.", "7 apples"),
    ("phrase", "The answer is $50$%.", "50%"),
    ("phrase", "The answer is 2.5 hours.", "2.5 hours"),
    ("phrase", "The answer is:\n\n$$42$$", "42"),
    ("phrase", r"The answer is \(x + 1\).", "x + 1"),
    ("phrase", "The answer is (B).", "(B)"),
    ("phrase", "The answer to this problem is 7", "7"),
    ("phrase", "the correct answer would be 7", "7"),
]


@pytest.mark.parametrize(("method", "response", "answer"), FOUND)
def test_found(method, response, answer):
    found = extract(response, (method,))
    assert found is not None and (found.text, found.method) == (answer, method)


NOTHING = [
    ("boxed", "7"),
    ("boxed", r"\boxed{7"),
    ("boxed", r"\boxed{}"),
    ("boxed", r"\boxed{" + "1" * (MAX_ANSWER + 1) + "}"),
    ("hashes", "## 7"),
    ("hashes", "####"),
    ("phrase", "I have no answer"),
    ("phrase", "the answer is"),
]


@pytest.mark.parametrize(("method", "response"), NOTHING)
def test_nothing_found(method, response):
    assert extract(response, (method,)) is None


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("**D**", "D"),
        ("It is warmer than A, so\n\n**D**.\n", "D"),
        ("**(D)**", "(D)"),
        ("Hence **D) 12**", "D) 12"),
        ("Not **A** but **D.**", "D."),
        ("**D** is what I would say if I knew", None),
        ("**Done**", None),
        ("**Do it**", None),
        ("**K**", None),
        ("D**", None),
        ("**", None),
    ],
)
def test_a_letter_in_bold_at_the_end_answers_a_question_with_choices(response, answer):
    found = extract(response, choices=True)
    assert (found and found.text) == answer
    assert extract(response, ("boxed", "hashes", "phrase")) is None
    assert extract(response, ("boxed", "hashes"), choices=True) is None


def test_methods_are_tried_in_order_and_can_be_left_out():
    response = "The answer is 1.\n#### 2\n\\boxed{3}"
    assert extract(response).text == "3"
    assert extract(response, ("hashes", "phrase")).text == "2"
    assert extract(response, ("phrase",)).text == "1"


def test_only_the_end_of_a_response_is_searched_and_positions_are_absolute():
    assert extract("x" * 30_000 + r"\boxed{7}") == Extraction("7", "boxed", 30_000)
    assert extract(r"\boxed{7}" + " " * TAIL) is None


@given(st.text(alphabet=r"\boxed{}#$()[]0123456789., theanswris:=/%-", max_size=300))
@settings(deadline=None, max_examples=150)
def test_an_extraction_lies_in_the_response(response):
    for method in METHODS:
        found = extract(response, (method,))
        if found is not None:
            assert found.text.strip() and len(found.text) <= MAX_ANSWER
            # A unit after a formula is joined to it without the delimiter in between.
            assert found.text in response[found.start :] or method == "phrase"
