"""Multiple-choice rows of the layouts of common data sets."""

import json

import pytest

from gagpo.base.row_files import BadRow
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.sources import load
from gagpo.envs.math.verify.verifier import Verifier
from tests.rejections import rejects

FOUR = "\n(A) a\n(B) b\n(C) c\n(D) d"
ROWS = [
    # row, text, gold answer
    ({"question": "Q?", "choices": ["a", "b", "c", "d"], "answer": 3}, "Q?" + FOUR, r"\text{(D)} d"),  # MMLU-STEM
    (
        {"question": "Q?", "choices": ["1", "2", "3", "4"], "answer": 3},
        "Q?\n(A) 1\n(B) 2\n(C) 3\n(D) 4",
        r"\text{(D)} 4",
    ),
    ({"question": "Q?", "choices": ["a", "b", "c", "d"], "answer": "C"}, "Q?" + FOUR, r"\text{(C)} c"),
    ({"question": "Q?", "choices": ["x", "y"], "answer": "y"}, "Q?\n(A) x\n(B) y", r"\text{(B)} y"),
    ({"question": "Q?", "choices": '["x", "y"]', "answer": "1"}, "Q?\n(A) x\n(B) y", r"\text{(B)} y"),  # CSV
    (  # AGIEval's SAT and Gaokao
        {"passage": "P.", "question": "Q?", "options": ["(A)$x+1$", "(B)$\\sqrt{2}$"], "label": "B", "answer": None},
        "P.\nQ?\n(A) $x+1$\n(B) $\\sqrt{2}$",
        r"\text{(B)} $\sqrt{2}$",
    ),
    ({"passage": None, "question": "Q?", "options": None, "label": None, "answer": "2"}, "Q?", "2"),
    (  # ARC
        {"question": "Q?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"},
        "Q?\n(A) x\n(B) y",
        r"\text{(B)} y",
    ),
    (
        {"question": "Q?", "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}], "answerKey": "A"},
        "Q?\n(A) x\n(B) y",
        r"\text{(A)} x",
    ),
    ({"question": "Q?", "options": {"A": "x", "B": "y"}, "answer": "y"}, "Q?\n(A) x\n(B) y", r"\text{(B)} y"),  # MedQA
    ({"question": "Q?", "options": ["A)21", "B)22"], "correct": "B"}, "Q?\n(A) 21\n(B) 22", r"\text{(B)} 22"),  # AQuA
    ({"question": "Q?", "A": "1", "B": "2", "C": "3", "answer": "C"}, "Q?\n(A) 1\n(B) 2\n(C) 3", r"\text{(C)} 3"),
    (  # GPQA
        {"Question": "Q?", "Correct Answer": "x", "Incorrect Answer 1": "y", "Incorrect Answer 2": "z"},
        "Q?\n(A) y\n(B) x\n(C) z",
        r"\text{(B)} x",
    ),
    # Two options of one value: only the letter tells them apart.
    ({"question": "Q?", "choices": ["0.5", "1/2", "3"], "answer": 1}, "Q?\n(A) 0.5\n(B) 1/2\n(C) 3", "B"),
]


def write(path, row):
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("row", "text", "gold"), ROWS)
def test_rows_with_options(row, text, gold, tmp_path):
    [problem] = load({"test": write(tmp_path / "a.jsonl", row)}).problems["test"].values()
    assert (sorted(problem.text), problem.answer) == (sorted(text), gold) if "Question" in row else (text, gold)
    assert Verifier().verify(gold, rf"\boxed{{{gold}}}").reason == "match"


BAD = [
    ({"choices": ["a", "b"], "answer": 2}, "index from 0 to 1"),
    ({"choices": ["a", "b"], "answer": -1}, "answer -1"),
    ({"choices": ["a", "b"], "answer": "C"}, "answer 'C'"),
    ({"choices": ["a", "b"], "answer": True}, "answer True"),
    ({"choices": ["1", "2", "3"], "answer": "2"}, "write a letter"),
    ({"choices": ["a", "b"]}, "no answer"),
    ({"choices": ["a"], "answer": 0}, "2 to 10 options (got 1)"),
    ({"choices": ["a"] * 11, "answer": 0}, "2 to 10 options (got 11)"),
    ({"choices": ["a", None], "answer": 0}, "NoneType"),
    ({"choices": ["a", float("nan")], "answer": 0}, "option is nan"),
    ({"choices": {"text": ["a", 1e999], "label": ["A", "B"]}, "answer": "A"}, "option is inf"),
    ({"choices": ["a", " "], "answer": 0}, "empty option"),
    ({"choices": "a, b", "answer": 0}, "'choices' is a text"),
    ({"choices": 3, "answer": 0}, "'choices' must be a list"),
    ({"choices": {"text": ["a", "b"], "label": ["A"]}, "answer": 0}, "one label"),
    ({"Correct Answer": "a", "Incorrect Answer 1": "a"}, "wrong answers"),
]


@pytest.mark.parametrize(("row", "name"), BAD)
def test_options_that_cannot_be_read_are_refused_by_row(row, name, tmp_path):
    path = write(tmp_path / "bad.jsonl", {"question": "Q?", **row})
    with rejects(BadRow, "bad.jsonl, row 1", name) as error:
        load({"test": path})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{B}", True),
        (r"\boxed{(B)}", True),
        (r"\boxed{\text{(B) } 12}", True),
        (r"\boxed{12}", True),
        ("The answer is B.", True),
        ("So it is **B**", True),
        (r"\boxed{C}", False),
        (r"\boxed{(C) 12}", False),
        (r"\boxed{13}", False),
        (r"\boxed{1}", False),
    ],
)
def test_a_letter_or_the_option_is_an_answer(response, right, tmp_path):
    row = {"question": "How many?", "choices": ["11", "12", "13"], "answer": 1}
    env = MathEnv("test", data={"test": write(tmp_path / "a.jsonl", row)}, attempts=1, tools=False)
    observation, _ = env.reset(seed=0)
    assert "(B) 12" in observation
    assert env.step(response)[4]["success"] is right
