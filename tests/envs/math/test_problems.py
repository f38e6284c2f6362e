"""Generated problems: correct answers, splits that cannot overlap, the same tasks in every process."""

import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.math.calculator import calculate
from gagpo.envs.math.families import FAMILIES, LEVELS
from gagpo.envs.math.problems import (
    SPLITS,
    GeneratedTasks,
    by_id,
    check_families,
    check_levels,
    content_key,
    generate,
    split_of,
)
from gagpo.envs.tasks import UnknownTask
from tests.rejections import rejects

some_problem = st.builds(
    generate, st.sampled_from(list(FAMILIES)), st.sampled_from(LEVELS), st.sampled_from(SPLITS), st.integers(0, 10**6)
)


@given(some_problem)
@settings(deadline=None, max_examples=150)
def test_steps_end_in_the_answer_and_text_and_id_fix_split_and_problem(problem):
    for expression, value in problem.steps:
        assert str(calculate(expression)) == value
    assert problem.steps[-1][1] == problem.answer
    assert problem.text[0].isupper() and problem.text[-1] in ".?" and "  " not in problem.text
    assert split_of(content_key(problem.text)) == problem.split and by_id(problem.id) == problem


def solved_independently(problem):
    """The answer computed from the text by SymPy or plain arithmetic."""
    numbers = [int(n) for n in re.findall(r"\d+", problem.text)]
    match problem.type:
        case "arithmetic" | "fractions":
            expression = re.search(r"(?:What is|Compute|Find the value of) (.*)[.?]$", problem.text)[1]
            return sympy.Rational(sympy.parse_expr(expression, transformations="all"))
        case "equations":
            remaining, right = re.search(r"x: (.*)\.$", problem.text)[1].split("=")
            sides = [sympy.parse_expr(side, transformations="all") for side in (remaining, right)]
            return sympy.solve(sympy.Eq(*sides))[0]
        case "modular" if "smallest" in problem.text:
            _, a, b, p = numbers
            return next(x for x in range(p) if a * x % p == b)
        case "modular":
            *operands, modulus = numbers
            match = re.search(r"[*^+]", problem.text)
            if match is None:
                return operands[0] % modulus
            a, b = operands
            return {"+": a + b, "*": a * b, "^": pow(a, b, modulus)}[match[0]] % modulus
        case "sequences":
            if "fixed multiple" in problem.text:
                return numbers[-1] * numbers[1] // numbers[0]
            if "sum of the two" in problem.text:
                return numbers[-1] + numbers[-1] + numbers[-2]
            # constant first or second differences: the polynomial through the terms
            return sympy.interpolate(numbers, len(numbers) + 1)
    return None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "words"])
def test_answers_agree_with_an_independent_solver(family, level):
    for index in range(12):
        problem = generate(family, level, "train", index)
        assert Fraction(str(solved_independently(problem))) == Fraction(problem.answer), problem.text


def test_word_problems_by_hand():
    """Recompute the answers of every story template from the numbers in the text."""
    solvers = {
        r"has (\d+) \w+ and gets (\d+) more": lambda a, b: a + b,
        r"has (\d+) \w+ and gives (\d+) away": lambda a, b: a - b,
        r"has (\d+) \w+\. \w+ has (\d+) \w+\. How many \w+ do they": lambda a, b: a + b,
        r"are (\d+) boxes with (\d+) \w+ in each, and (\d+)": lambda a, b, c: a * b + c,
        r"has (\d+) dollars and buys (\d+) \w+ for (\d+) dollars each\.": lambda a, b, c: a - b * c,
        r"has (\d+) \w+ and \w+ has (\d+)\. They share .* among (\d+)": lambda a, b, c: Fraction(a + b, c),
        r"works (\d+) hours a day for (\d+) days and earns (\d+) .* pays (\d+)": lambda a, b, c, d: a * b * c - d,
        r"is (\d+) years old\. \w+ is (\d+) times .* in (\d+) years": lambda a, b, c: a + c + a * b + c,
        r"buys (\d+) \w+ for (\d+) dollars each and (\d+) \w+ for (\d+)": lambda a, b, c, d: a * b + c * d,
        r"for (\d+) dollars each and takes (\d+) percent .* do (\d+) of": lambda a, b, c: (
            a * c * Fraction(100 - b, 100)
        ),
        r"goes (\d+) km .* for (\d+) hours and then (\d+) km .* for (\d+)": lambda s, a, t, b: Fraction(
            a * s + b * t, a + b
        ),
        r"share (\d+) \w+ in the ratio (\d+) to (\d+)\. .* gives \w+ (\d+)": lambda n, a, b, g: n * a // (a + b) + g,
    }
    observed = set()
    for level in LEVELS:
        for index in range(60):
            problem = generate("words", level, "train", index)
            [(pattern, solve)] = [(p, f) for p, f in solvers.items() if re.search(p, problem.text)]
            numbers = map(int, re.search(pattern, problem.text).groups())
            assert solve(*numbers) == Fraction(problem.answer), problem.text
            observed.add(pattern)
    assert observed == set(solvers)


def test_manifests_do_not_overlap_and_hold_no_content_twice():
    keys, texts = {}, {}
    for split in SPLITS:
        tasks = GeneratedTasks(split, tuple(FAMILIES), LEVELS, 480)
        problems = [by_id(task.id) for task in tasks]
        keys[split] = {content_key(problem.text) for problem in problems}
        texts[split] = {problem.text for problem in problems}
        assert all(task.split == split and task.type in FAMILIES for task in tasks)
        per_cell = {}
        for problem in problems:
            cell = problem.id.rsplit("-", 2)[0]
            per_cell.setdefault(cell, []).append(content_key(problem.text))
        assert all(len(set(cell)) == len(cell) for cell in per_cell.values())
    for item, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        assert not keys[item] & keys[other] and not texts[item] & texts[other]


def test_sizes_are_spread_evenly():
    tasks = GeneratedTasks("train", ("equations", "words"), (2, 3), 200)
    cells = [task.id.rsplit("-", 2)[0] for task in tasks]
    assert Counter(cells) == {"equations-2": 50, "equations-3": 50, "words-2": 50, "words-3": 50}
    assert 20 < len(GeneratedTasks("test", ("arithmetic",), (1,), 5000)) < 200  # a small family runs out


def test_tasks_are_unlimited():
    tasks = GeneratedTasks("train", ("words",), (3,), 10)
    assert len(tasks) == 10
    far = "words-3-train-123456789"
    assert far in tasks and tasks[far].id == far
    assert "words-3-test-000000" not in tasks
    with rejects(UnknownTask, advice="words-3-train"):
        tasks["words-3-trian-000001"]
    with rejects(UnknownTask, advice="arithmetic-1-train-000017"):
        by_id("arithmetic/1")


def test_the_same_tasks_in_another_process():
    code = (
        "from gagpo.envs.math.problems import GeneratedTasks; from gagpo.envs.math.families import FAMILIES, LEVELS; "
        "print(GeneratedTasks('test', tuple(FAMILIES), LEVELS, 96).hash)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert other.stdout.strip() == GeneratedTasks("test", tuple(FAMILIES), LEVELS, 96).hash


def test_phrasing_and_names_do_not_change_the_content():
    assert content_key("What is 3 + 4?") == content_key("Compute 3 + 4.")
    assert content_key("Anna has 3 apples and gets 4 more.") == content_key("Ben has 3 coins and gets 4 more.")
    assert content_key("What is 3 + 4?") != content_key("What is 4 + 3?")


def test_about_a_tenth_is_held_out_twice():
    splits = [split_of(f"{a} + {b}") for a in range(60) for b in range(60)]
    for split in ("validation", "test"):
        assert 0.07 < splits.count(split) / len(splits) < 0.13


def test_choices_are_validated():
    assert check_families("all") == check_families([]) == tuple(FAMILIES)
    assert check_families("words, fractions") == ("words", "fractions")
    assert check_levels(3) == (3,) and check_levels([2, 1, 2]) == (1, 2)
    with rejects(ValueError, "algebra", advice="arithmetic"):
        check_families(["algebra"])
    with rejects(ValueError, advice="from 1 to 4"):
        check_levels([0])
    with rejects(ValueError, key="levels"):
        check_levels([])
