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
    ("boxed", r"\boxed{7} but \boxed{}", "7"),
    ("boxed", r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
    ("boxed", r"The solutions are \boxed{3} and \boxed{7}.", "3, 7"),
    ("boxed", r"So $x=\boxed{3}$ or $x=\boxed{7}$.", "x = 3, x = 7"),
    ("boxed", r"$x=\boxed{3}$, $y=\boxed{7}$", "x = 3, y = 7"),
    ("boxed", r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3"),
    ("boxed", r"I get \boxed{3}. Let me check. So \boxed{7}.", "7"),
    ("boxed", "\\boxed{7}\n\n\\boxed{7}", "7"),
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
    ("phrase", "### Answer\n42", "42"),
    ("phrase", "## Final answer\n\n42", "42"),
    ("phrase", "**Final Answer**\n\n$42$", "42"),
    ("phrase", "### Final Answer:\n**42**", "42"),
    ("phrase", "The result is $42$.", "42"),
    ("phrase", "Solution: 42", "42"),
    ("phrase", "She makes 9 * 2 = $18 every day.\nA: 18", "18"),
    ("phrase", "Réponse : 42", "42"),
    ("phrase", "La réponse finale est $42$.", "42"),
    ("phrase", "Le résultat est 3,5.", "3{,}5"),
    ("phrase", "答案是42。", "42"),
    ("phrase", "所以最终答案为：$42$。", "42"),
    ("phrase", "答：42元", "42元"),
    ("phrase", "故选：B", "B"),
]


@pytest.mark.parametrize(("method", "response", "answer"), FOUND)
def test_found(method, response, answer):
    results = extract(response, (method,))
    assert results is not None and (results.text, results.method) == (answer, method)


NOTHING = [
    ("boxed", "7"),
    ("boxed", r"\boxed{7"),
    ("boxed", r"\boxed{}"),
    ("boxed", r"\boxed{" + "1" * (MAX_ANSWER + 1) + "}"),
    ("hashes", "## 7"),
    ("hashes", "####"),
    ("phrase", "I have no answer"),
    ("boxed", r"\boxed{7} but \boxed{8"),  # cut off within the answer
    ("boxed", r"It is not \boxed{8}"),
    ("phrase", "the answer is"),
    ("phrase", "### Answer\nFirst we note that the sum of the digits must be even, so we try 12."),
    ("phrase", "The result is 12. Then add 30."),
    ("phrase", "Solution: first compute 12."),
    ("phrase", "A: 18\nB: 20"),
    ("phrase", "La réponse n'est pas 42."),
    ("phrase", "答案不是42。"),
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
    results = extract(response, choices=True)
    assert (results and results.text) == answer
    assert extract(response, ("boxed", "hashes", "phrase")) is None
    assert extract(response, ("boxed", "hashes"), choices=True) is None


def test_a_label_in_the_last_line_is_a_choice_where_there_are_choices():
    assert extract("A: 18") == Extraction("18", "phrase", 0)
    assert extract("A: 18", choices=True) is None
    assert extract("A: (B)", choices=True).text == "(B)"


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
        results = extract(response, (method,))
        if results is not None:
            assert results.text.strip() and len(results.text) <= MAX_ANSWER
            # A unit after a formula is joined to it without the delimiter in between, and boxes to a list.
            segments = results.text.split(", ") if response.count("box") > 1 else [results.text]
            assert (
                all(segment.partition(" = ")[2] or segment in response[results.start :] for segment in segments)
                or method == "phrase"
            )
