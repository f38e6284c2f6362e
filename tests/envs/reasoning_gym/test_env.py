"""Families of reasoning-gym: tasks, verdicts, untrusted answers, invalid configurations, exactness, and training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.lookup import UnknownEnvironment, find_spec, markov_key
from gagpo.envs.reasoning_gym.env import extract_answer
from gagpo.envs.reasoning_gym.grading import is_equal, is_nonfinite
from tests.rejections import rejects

FEW = {"tasks": {"train": "0-9", "test": "1000-1003"}}
WITHOUT_ANSWERS = {"boxnet", "rush_hour"}
"""Families whose problems carry no answer."""

installed = pytest.mark.usefixtures("package")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))


def score(family: str, answer: str) -> tuple[float, str]:
    """The reward of an answer to the first task of a family, and the verdict."""
    env = make_env(f"reasoning_gym:{family}", {"tasks": {"train": "0-1", "test": "2-3"}})
    try:
        env.reset(options={"task": "train-0000000"})
        _, reward, terminated, _, info = env.step(f"<answer>{answer}</answer>")
    finally:
        env.close()
    assert terminated
    return reward, info["verdict"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("It is <answer> 2 </answer>.", "2"),
        ("<answer>1</answer> no, <answer>2\n3</answer>", "2\n3"),
        ("<think><answer>1</answer></think> I do not know", ""),
        ("2", ""),
        ("</answer>2<answer>", ""),
        ("<answer>" * 20_000, ""),
        ("<answer>\ud800</answer>", "?"),
    ],
)
def test_the_answer_is_what_stands_between_the_last_tags(response: str, answer: str) -> None:
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    ("answer", "expected", "digits", "equal"),
    [
        ("1,234", "1234", None, True),
        ("12,34", "1234", None, False),
        ("0.3333", "0.3333333333", 3, True),
        ("0.33", "0.3333333333", 3, False),
        ("1/3", "0.3333333333", 3, True),
        ("1/3", "0.3333333333", None, False),
        ("-5", "5", None, False),
        ("−5", "-5", None, True),
        ("nan1", "1", None, False),
        ("snan1", "1", 3, False),
        ("1e99999999", "1e99999998", 3, False),
        ("1/0", "1", 3, False),
        ("[1, 2]", "[1, 2, 3]", None, False),
        ("New  York", "new york", None, True),
        ("", "0", None, False),
    ],
)
def test_answers_are_compared_by_value(answer: str, expected: str, digits: int | None, equal: bool) -> None:
    assert is_equal(answer, expected, digits) == equal
    assert not is_nonfinite("banana 1e5") and is_nonfinite("snan1") == is_nonfinite("9" * 400) == True  # noqa: E712


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.reasoning_gym.registration.find_spec", lambda name: None)
    with rejects(UnknownEnvironment, advice="pip install -c constraints.txt -e '.[reasoning-gym]'"):
        find_spec("reasoning_gym:gcd")


@pytest.mark.interop
@installed
def test_a_problem_is_one_turn_with_its_own_verifier() -> None:
    env = make_env("reasoning_gym:gcd", {**FEW, "expert": True})
    text, info = env.reset(options={"task": "test-0001001"})
    gold = extract_answer(info["expert_action"])
    assert "Greatest Common Divisor" in text and (info["turn"], info["answer"]) == (0, "")
    assert env.step(info["expert_action"])[1:3] == (1.0, True)
    env.reset(options={"task": "test-0001001"})
    _, reward, terminated, truncated, info = env.step(f"<answer>{int(gold) + 1}</answer>")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["success"], info["valid"], info["verdict"], info["answer"]) == (
        False,
        True,
        "wrong",
        str(int(gold) + 1),
    )
    env.reset(options={"task": "test-0001001"})
    _, reward, terminated, _, info = env.step(gold)
    assert (reward, terminated, info["valid"], info["verdict"]) == (0.0, True, False, "no_answer")
    assert markov_key("reasoning_gym:gcd") == "state"
    env.close()


@pytest.mark.interop
@installed
def test_no_question_is_in_two_splits(tmp_path: Path) -> None:
    """``coin_flip`` has few problems with small numbers: most seeds repeat one."""
    kwargs = {"tasks": {"train": "0-39", "test": "40-49"}, "max_trials": 4}
    env = make_env("reasoning_gym:coin_flip", kwargs)
    train, test = env.tasks("train"), env.tasks("test")
    digests = [task.digest for tasks in (train, test) for task in tasks]
    assert len(set(digests)) == len(digests) and 0 < len(train) < 40
    grown = make_env("reasoning_gym:coin_flip", {**kwargs, "tasks": {"train": "0-20", "test": "40-49"}})
    assert grown.tasks("test").hash == test.hash  # held-out tasks do not depend on the training seeds
    (file, _) = sorted((tmp_path / "data" / "reasoning_gym").glob("*.json"))
    file.write_text("{")  # a damaged list is made again
    again = make_env("reasoning_gym:coin_flip", kwargs)
    assert (again.tasks("train").hash, again.tasks("test").hash) == (train.hash, test.hash)
    env.close(), grown.close(), again.close()


@pytest.mark.interop
@installed
@pytest.mark.parametrize(
    ("family", "answer"),
    [
        ("polynomial_multiplication", "__import__('os').system('touch {}')"),
        ("polynomial_multiplication", "open('{}', 'w')"),
        ("simple_integration", "(lambda: open('{}', 'w'))()"),
        ("countdown", "eval(\"open('{}', 'w')\")"),
        ("puzzle24", "().__class__.__base__.__subclasses__()"),
        ("spiral_matrix", "[open('{}', 'w')]"),
        ("string_insertion", "[__import__('os').system('touch {}')]"),
        ("binary_matrix", "[[__import__('pathlib').Path('{}').touch()]]"),
        ("n_queens", "exec('open({}, 1)')"),
    ],
)
def test_an_answer_is_never_evaluated(family: str, answer: str, tmp_path: Path) -> None:
    reward, verdict = score(family, answer.format(tmp_path / "trace"))
    assert reward < 0.1 and verdict in ("wrong", "partial")
    assert not (tmp_path / "trace").exists()


@pytest.mark.interop
def test_the_verifiers_that_evaluate_are_known() -> None:
    """A new version of the package must not bring another ``eval`` of an answer."""
    package = pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")
    from gagpo.envs.reasoning_gym.evaluation import LITERALS

    folder = Path(package.__file__).parent
    evaluating = {}
    for path in folder.rglob("*.py"):
        calls = re.findall(r"(?<![\w.])(?:eval|exec)\((\w+)", path.read_text(encoding="utf-8"))
        evaluating[".".join(("reasoning_gym", *path.relative_to(folder).with_suffix("").parts))] = set(calls)
    assert {name for name, arguments in evaluating.items() if "answer" in arguments} == set(LITERALS)
    reference = {"exp", "entry", "problem", "problem_str", "fraction", "rng", "full_code", "answer"}
    assert set().union(*evaluating.values()) <= reference


@pytest.mark.interop
@installed
@pytest.mark.parametrize(
    ("family", "answer", "verdict"),
    [
        ("countdown", "9**9**9**9", "timeout"),  # seconds of CPU time
        ("gcd", "9" * 60_000, "wrong"),  # too long
        ("prime_factorization", "x", "wrong"),  # the verifier raises an error
        ("game_of_life_halting", "nothing of this kind", "wrong"),  # the verifier accepts anything
    ],
)
def test_hostile_answers_get_a_verdict(family: str, answer: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.reasoning_gym.problems.SCORING_CPU_SECONDS", 0.5)
    assert score(family, answer)[1] == verdict


@pytest.mark.interop
@installed
@pytest.mark.parametrize(
    ("kwargs", "key", "name"),
    [
        ({"min_number": 3}, "min_number", "nearest: min_numbers"),
        ({"min_value": -1}, None, "min_value"),
        ({"size": 3}, "size", "tasks"),
        ({"max_turns": 2}, "max_turns", "got 2"),
        ({"tasks": {"train": "0-9", "test": "5-12"}}, "tasks.test", "share seeds"),
    ],
)
def test_invalid_configurations_are_reported(kwargs: dict, key: str | None, name: str) -> None:
    with rejects(InvalidArgument, name, key=key):
        make_env("reasoning_gym:gcd", kwargs).reset()


@pytest.mark.interop
@installed
@pytest.mark.parametrize(
    ("name", "words"),
    [("leg_countng", "nearest: leg_counting"), ("composite", "family"), ("", "family")],
)
def test_an_unknown_family_names_the_nearest(name: str, words: str) -> None:
    with rejects(UnknownEnvironment, words, where=f"environment 'reasoning_gym:{name}'"):
        find_spec(f"reasoning_gym:{name}")


@pytest.mark.interop
@pytest.mark.slow
@installed
@pytest.mark.parametrize("family", ["gcd", "word_ladder", "sudoku"])
def test_the_checks_pass(family: str) -> None:
    findings = check(f"reasoning_gym:{family}", FEW, episodes=3)
    assert [(finding.name, finding.detail) for finding in findings if not finding.ok] == []


SCORED = (
    ("coin_flip", 1, "0", False),  # a prefix of 0.3125
    ("coin_flip", 1, "0.31", False),
    ("coin_flip", 1, "0.3126", False),
    ("coin_flip", 1, "5/16", True),
    ("coin_flip", 3, "0.234", True),  # 0.234375
    ("complex_arithmetic", 0, "nan", False),
    ("complex_arithmetic", 0, "nan + nanj", False),
    ("complex_arithmetic", 0, "48+36i", True),
    ("number_sorting", 2, "['nan', 'nan', 'nan']", False),
    ("number_sorting", 2, "['66.5', '62.1', '-82.0']", False),  # within 1 of each
    ("number_sorting", 2, "[67.1, 61.80, -81.7]", True),
    ("gsm_symbolic", 1, "-44", False),
    ("gsm_symbolic", 1, "44 or 45", False),
    ("gsm_symbolic", 1, "$44.0", True),
    ("puzzle24", 0, "4*6*1*1", False),  # other numbers
    ("puzzle24", 0, "9 + (5*3)*1", True),
    ("countdown", 0, "6*98 - 54*34 + 66 + floor(pi)", False),
    ("simple_integration", 1, "Integral(-272*x**7/15 - 5/4, x)", False),
    ("word_sorting", 1, "thought, sentence, federal, ambassador, Only, zebra", False),
    ("word_sorting", 1, "thought,sentence,federal,ambassador,Only", True),
    ("fraction_simplification", 0, "79/173 + 1", False),
    ("fraction_simplification", 0, "79/173", True),
    ("time_intervals", 0, "5 hours", False),
    ("time_intervals", 0, "5", True),
    ("knights_knaves", 0, "Jacob is a knave and Victoria is a knight", True),
    ("knights_knaves", 0, "It is wrong that Victoria is a knight, and Jacob is a knave.", False),
    ("propositional_logic", 0, "(zzz ∨ zzz)", False),
    ("prime_factorization", 3, "7 × 5 × 7", True),
)
SCORES = """
import json, sys
from gagpo.envs.reasoning_gym.evaluation import restrict
from gagpo.envs.reasoning_gym.worker import ProblemFamily
cases, path = json.loads(sys.argv[1])
restrict()
scores = [ProblemFamily(name, {"seed": 0, "size": 1100}).score(seed, answer) for name, seed, answer, _ in cases]
with open(path, "w") as file:
    json.dump(scores, file)
"""


def run_separately(script: str, *arguments: object) -> None:
    """Run a script in a process of its own, in which evaluating is restricted for good."""
    subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )


@pytest.mark.interop
@installed
def test_only_an_answer_of_the_right_value_gets_the_full_score(tmp_path: Path) -> None:
    run_separately(SCORES, SCORED, str(tmp_path / "scores.json"))
    scores = json.loads((tmp_path / "scores.json").read_text())
    wrong = [case for case, score in zip(SCORED, scores, strict=True) if (score == 1) != case[3]]
    assert wrong == []


NONSENSE = """
import json, re, sys
from gagpo.envs.reasoning_gym.evaluation import restrict
from gagpo.envs.reasoning_gym.worker import ProblemFamily

NUMBER = re.compile(r"\\d+(?:\\.\\d+)?")
FIXED = ("no such answer", "nan", "-inf", "1e999", "0", "-1", "[]", "{}", "null", "x", "nan + nani", "['nan', 'nan']")

def increased(match):
    return match[0] + "7" if "." in match[0] else str(int(match[0]) + 1)

def nonsense(gold, others):
    yield from (("fixed", answer) for answer in FIXED)
    yield from (("of another problem", other or "") for other in others)
    for name, value in (("NaN", "nan"), ("infinite", "Infinity"), ("zero", "0"), ("increased", increased)):
        yield name, NUMBER.sub(value, gold)
    yield "slightly increased", NUMBER.sub(lambda match: f"{float(match[0]) + 0.3:.3f}", gold)
    numbers = list(NUMBER.finditer(gold))
    for match in (numbers[:1] + numbers[-1:]):
        yield "a number increased", gold[:match.start()] + increased(match) + gold[match.end():]
    yield "other words", re.sub(r"[^\\W\\d_]+", "zzz", gold)
    yield "negated", "-" + gold
    yield "cut", gold[: len(gold) // 3 + 1]
    yield "reversed", gold[::-1]
    yield "repeated", gold + gold
    yield from (("continued", gold + end) for end in (", zzz", " 7", ", 7"))

def is_same(answer, gold):
    try:
        return float(answer) == float(gold)
    except ValueError:
        return answer.strip().casefold() == gold.strip().casefold()

seeds, families, path = json.loads(sys.argv[1])
restrict()
table = {}
for name in families:
    family = ProblemFamily(name, {"seed": 0, "size": 1100})
    golds = [family.problem(seed)[1] for seed in seeds]
    paid, answers = [], 0
    for seed, gold in zip(seeds, golds):
        others = [other for other in golds if other != gold]
        wrong = [(form, answer) for form, answer in nonsense(gold or "", others) if not is_same(answer, gold or "")]
        answers += len(wrong)
        paid += [(form, answer) for form, answer in wrong if family.score(seed, answer) >= 1]
    table[name] = (answers, paid)
with open(path, "w") as file:
    json.dump(table, file)
"""
RIGHT_TOO = {
    ("graph_color", "a number increased"),  # another colour that no neighbour has
    ("prime_factorization", "reversed"),
    ("propositional_logic", "of another problem"),
    ("puzzle24", "reversed"),
    ("rubiks_cube", "continued"),
    ("sokoban", "repeated"),
    ("tower_of_hanoi", "negated"),  # a dash before the first move
}


@pytest.mark.interop
@pytest.mark.slow
def test_no_family_pays_nonsense_of_the_form_of_an_answer(tmp_path: Path) -> None:
    """Every form of nonsense, for every family and several seeds; prints a table."""
    pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")
    from gagpo.envs.reasoning_gym.env import families

    written = tmp_path / "table.json"
    run_separately(NONSENSE, [0, 1, 2, 3], families(), str(written))
    table = json.loads(written.read_text())
    for family, (answers, paid) in table.items():
        print(f"{family:28} {answers:4} wrong answers, paid: {paid}")
    wrongly_paid = {(family, format): answer for family, (_, paid) in table.items() for format, answer in paid}
    assert {key: wrongly_paid[key] for key in wrongly_paid.keys() - RIGHT_TOO} == {}


EVERY_FAMILY = """
import json, sys
from gagpo.envs.reasoning_gym.worker import ProblemFamily
config, seeds, families, path = json.loads(sys.argv[1])
problems = {}
for name in families:
    family = ProblemFamily(name, config)
    problems[name] = [family.problem(seed) for seed in seeds]
with open(path, "w") as file:  # some families print
    json.dump(problems, file)
"""


@pytest.mark.interop
@pytest.mark.slow
def test_every_family_is_exact_and_solved_by_its_own_answers(tmp_path: Path) -> None:
    """In a process per family, and in one process after the problems of other families, in another order of seeds."""
    pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")
    from gagpo.envs.reasoning_gym.env import families
    from gagpo.envs.reasoning_gym.problems import ProblemProcess

    assert len(families()) >= 105
    config, seeds = {"seed": 0, "size": 1100}, (0, 3, 1050)
    # A process per family takes seconds to import the package, so the second one is shared and runs beside the first.
    written = tmp_path / "problems.json"
    arguments = json.dumps([config, seeds, list(families()), str(written)])
    shared = subprocess.Popen(
        [sys.executable, "-c", EVERY_FAMILY, arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL,
    )
    problems = {}
    for family in families():
        process = ProblemProcess(family, config)
        problems[family] = {seed: process.problem(seed) for seed in reversed(seeds)}
        if family not in WITHOUT_ANSWERS:
            for seed, problem in problems[family].items():
                assert problem.answer is not None, family
                assert process.score(seed, problem.answer) == (1.0, "correct"), family
        assert process.score(3, "nothing of this kind")[1] != "correct", family
        process.close()
    assert shared.wait(timeout=600) == 0
    again = json.loads(written.read_text())
    for family, generated in problems.items():
        assert again[family] == [[generated[seed].question, generated[seed].answer] for seed in seeds], family


@pytest.mark.interop
@pytest.mark.slow
@installed
def test_a_small_model_trains_on_a_family(tmp_path: Path) -> None:
    settings = {
        "name": "gcd",
        "model": "model",
        "environment": {"id": "reasoning_gym:gcd", "kwargs": {"max_value": 9}, "tasks": FEW["tasks"]},
        "rollout": {"tasks": 2, "group_size": 2, "max_tokens": 12},
        "algorithm": "gagpo",
        "training": {"iterations": 1},
        "evaluation": {"splits": ["test"], "tasks": 2},
        "sft": {"episodes": 8, "steps": 2, "model": {"num_layers": 1, "hidden_size": 32}},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "gagpo", "train", "run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs/gcd/report.html").is_file()
