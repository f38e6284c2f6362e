"""Worked solutions with annotated calculations: as turns, checked against the calculator, counted."""

import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.problems import Problem
from gagpo.envs.math.solutions import (
    NO_CALCULATION,
    NO_SOLUTION,
    UNREADABLE,
    WRONG,
    UnusableSolution,
    count_solutions,
    worked_solution,
    written_solution,
)
from gagpo.envs.tasks import EmptySplit
from tests.rejections import rejects

CUPS = (
    "Mia fills 4*6 = <<4*6=24>>24 cups.\nAt $<<3/4=.75>>.75 each they bring 24 * .75 = $<<24*.75=18>>18.\n"
    "With the 1,000 saved she has <<1,000+18=1,018>>1,018 dollars in all.\n#### 1,018"
)
ROWS = [
    {"question": "Mia fills 4 rows of 6 cups and saved 1,000. How much?", "answer": CUPS},
    {"question": "Is 5 - 2 wrong?", "answer": "It is 5-2 = <<5-2=4>>4.\n#### 4"},
    {"question": "How old is Tom after 3 and 9 years?", "answer": "Let x be 3 years; then 12.\n#### 12"},
    {"question": "What is 7 - 7?", "answer": "It is <<x=0>>0.\n#### 0"},
    {"question": "What is 2 + 5?", "answer": "7"},
]


def problem(solution, answer="1,018"):
    return Problem("p-train-000001", "train", "p", "How much?", answer, solution=solution)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "cups.jsonl", ROWS)


def demonstrator(path, **settings):
    return MathEnv(data={"train": path}, expert=True, expert_mode="solution", **settings)


def followed(env, task):
    """The expert's actions and the observations that answer them."""
    _, info = env.reset(options={"task": task})
    actions, observations = [], []
    while (action := info["expert_action"]) is not None:
        observation, *_, info = env.step(action)
        actions.append(action)
        observations.append(observation)
    return actions, observations, info


def test_every_annotation_is_a_call_and_the_text_stays():
    worked = worked_solution(problem(CUPS))
    assert [step.response for step in worked.steps] == [
        "Mia fills 4*6 = <calc>4*6</calc>",
        "24 cups. At $<calc>3/4</calc>",
        ".75 each they bring 24 * .75 = $<calc>24*.75</calc>",
        "18. With the 1,000 saved she has <calc>1000+18</calc>",
    ]
    assert [step.value for step in worked.steps] == ["24", "3/4", "18", "1018"]
    assert worked.conclusion == r"1,018 dollars in all. \boxed{1,018}"


@pytest.mark.parametrize(
    ("solution", "reason", "detail"),
    [
        ("", NO_SOLUTION, ""),
        ("It is 18.\n#### 18", NO_CALCULATION, ""),
        ("<<5-2=4>>4\n#### 4", WRONG, "<<5-2=4>> is 3"),
        ("<<10/3=3.33>>3.33\n#### 3.33", WRONG, "is 10/3"),
        ("<<2x=4>>\n#### 2", UNREADABLE, "<<2x=4>>: unexpected 'x'"),
        ("<<24>>24\n#### 24", UNREADABLE, "<<24>> has no ="),
        ("<<9^9^9=1>>1\n#### 1", UNREADABLE, "too large"),
        ("<<__import__('os')=1>>1\n#### 1", UNREADABLE, "cannot read"),
        ("<calc>2</calc> <<1+1=2>>2\n#### 2", UNREADABLE, "contains <calc>"),
    ],
)
def test_a_solution_that_cannot_be_demonstrated_says_why(solution, reason, detail):
    with pytest.raises(UnusableSolution) as error:
        worked_solution(problem(solution))
    assert error.value.reason == reason and detail in str(error.value)


def test_the_expert_follows_the_solution_through_the_calculator(path):
    actions, observations, info = followed(demonstrator(path), "cups-train-000001")
    assert observations == ["Calculator: 24", "Calculator: 3/4", "Calculator: 18", "Calculator: 1018", "Right."]
    assert info["success"] and info["calls"] == 4 and actions[-1].endswith(r"\boxed{1,018}")


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_the_expert_gives_up_without_a_usable_solution(path, number):
    env = demonstrator(path)
    assert followed(env, f"cups-train-{number:06d}")[0] == []
    plain = MathEnv(data={"train": path}, expert=True)
    assert followed(plain, f"cups-train-{number:06d}")[2]["success"]


def test_a_call_that_is_not_the_experts_changes_no_step(path):
    env = demonstrator(path)
    first = env.reset(options={"task": "cups-train-000001"})[1]["expert_action"]
    assert env.step("<calc>1+1</calc>")[4]["expert_action"] == first
    assert env.step(first)[4]["expert_action"].startswith("24 cups.")


def test_a_solution_needs_a_turn_for_each_calculation_and_the_answer(path):
    assert followed(demonstrator(path, max_turns=5), "cups-train-000001")[2]["success"]
    env = demonstrator(path, max_turns=4)
    assert followed(env, "cups-train-000001")[0] == []
    with rejects(InvalidArgument, "0 of 5", "max_turns=4"):
        env.usable_solutions("train")


def test_what_is_left_out_is_counted_with_an_example(path):
    counts = demonstrator(path).usable_solutions("train")
    assert (counts.usable, counts.total) == (1, 5)
    assert counts.left_out == {WRONG: 1, NO_CALCULATION: 1, UNREADABLE: 1, NO_SOLUTION: 1}
    text = str(counts)
    assert text.startswith("1 of 5 solutions of the split train can be demonstrated; left out: ")
    assert f"1 {WRONG} (first: cups-train-000002, <<5-2=4>> is 3)" in text
    with pytest.raises(EmptySplit):
        demonstrator(path).usable_solutions("test")


def test_without_the_calculator_the_expert_writes_the_whole_solution(path):
    env = demonstrator(path, attempts=1, tools=False)
    actions, _, info = followed(env, "cups-train-000001")
    assert len(actions) == 1 and info["success"] and "<<" not in actions[0] and "At $.75 each" in actions[0]
    assert written_solution(problem("It is 18.\n#### 18", "18")) == r"It is 18. \boxed{18}"
    assert env.usable_solutions("train").usable == 4


@pytest.mark.parametrize("tools", [True, False])
def test_an_imperfect_expert_answers_with_the_first_calculation(path, tools):
    env = MathEnv(data={"train": path}, expert="imperfect", expert_mode="solution", tools=tools)
    actions, observations, info = followed(env, "cups-train-000001")
    assert actions[-1] == r"\boxed{24}" and len(actions) == 1 + tools
    assert observations[-1].startswith("Wrong.") and not info["success"]


def test_the_solution_may_have_a_column_of_its_own(tmp_path):
    rows = [{"q": "2 plus 3 cups?", "a": 5, "how": "They are 2+3 = <<2+3=5>>5 cups."}]
    columns = {"problem": "q", "answer": "a", "solution": "how"}
    env = MathEnv(
        data={"train": write(tmp_path / "own.jsonl", rows)}, columns=columns, expert=True, expert_mode="solution"
    )
    actions, _, info = followed(env, "own-train-000001")
    assert actions == ["They are 2+3 = <calc>2+3</calc>", r"5 cups. \boxed{5}"] and info["success"]


def test_loading_counts_for_the_expert_only(path, caplog):
    kwargs = {"data": {"train": path}, "expert_mode": "solution"}
    MathEnv.preload(**kwargs)
    assert not caplog.records
    MathEnv.preload(**kwargs, expert=True)
    assert "1 of 5 solutions" in caplog.text


def test_wrong_settings(path):
    with rejects(InvalidArgument, key="expert_mode"):
        MathEnv(data=path, expert_mode="solutions")
    with rejects(InvalidArgument, key="expert_mode", advice="data=FILE"):
        MathEnv(expert_mode="solution")
    kwargs = {"data": path}
    assert MathEnv.material(kwargs) == MathEnv.material({**kwargs, "expert_mode": "solution"})


def test_counting_many_problems():
    counts = count_solutions("train", [problem(CUPS)] * 1500, max_turns=9, with_tools=True)
    assert str(counts) == "1,500 of 1,500 solutions of the split train can be demonstrated"
