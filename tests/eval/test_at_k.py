"""pass@k, majority@k and distinct solutions: identities, numbers by hand, and every subset counted."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.base.errors import InvalidArgument
from gagpo.data import Call, Episode, Turn
from gagpo.eval.at_k import distinct_at_k, majority_at_k, read_ks
from gagpo.eval.compare import compare_results
from gagpo.eval.measures import MAJORITY, PASS, SOLUTIONS, SUCCESS
from gagpo.eval.results import EvalResult, EvaluatedTaskSet, measures_of_k
from gagpo.eval.statistics import paired_difference, random_sign_flips, sign_flip_test
from gagpo.eval.summary import result_lines
from gagpo.eval.units import PERCENT
from tests.rejections import rejects

N = 4


def attempt(task, sample, success, answer=None, action="go", **more):
    info = {} if answer is None else {"answer": answer}
    turns = [Turn("You see a mug.", "...", action)]
    return Episode(
        task, "", "test", sample=sample, turns=turns, success=success, outcome="terminated", info=info, **more
    )


def result(tasks, model="m", tries=N):
    """tasks: per task one ``(success, answer, action)`` for each try; fewer values take the defaults."""
    episodes = [
        attempt(f"t{number:03}", sample, *values)
        for number, task in enumerate(tasks)
        for sample, values in enumerate(task)
    ]
    return EvalResult.from_episodes(
        episodes, EvaluatedTaskSet("gagpo/Math-v0", "test", "h", len(tasks), tries), model, 1.0
    )


def of_successes(counts, tries=N):
    return result([[(sample < count,) for sample in range(tries)] for count in counts], tries=tries)


# The estimates --------------------------------------------------------------------------------------------------------


def vote(drawn):
    """The score of one vote, counted plainly."""
    sizes = Counter(answer for answer, _ in drawn if answer is not None)
    winners = {answer for answer, size in sizes.items() if size == max(sizes.values())}
    scores = [right for answer, right in drawn if not sizes or answer in winners]
    return sum(scores) / len(scores)


@given(st.lists(st.tuples(st.sampled_from(["7", "8", "9", "10", None]), st.booleans()), min_size=1, max_size=7))
@settings(deadline=None, max_examples=60)
def test_every_measure_is_the_mean_over_all_subsets(episodes):
    ks = range(1, len(episodes) + 1)
    answers, correct = zip(*episodes, strict=True)
    solutions = [str(answer) for answer, right in episodes if right]
    subsets = {k: list(combinations(episodes, k)) for k in ks}
    votes = [np.mean([vote(drawn) for drawn in subsets[k]]) for k in ks]
    distinct = [np.mean([len({answer for answer, right in drawn if right}) for drawn in subsets[k]]) for k in ks]
    assert majority_at_k(answers, correct, ks) == pytest.approx(votes, abs=1e-12)
    assert distinct_at_k(solutions, len(episodes), ks) == pytest.approx(distinct, abs=1e-12)


def test_votes_by_hand():
    """Two of three say 7, which is right: one draw of two in three agrees on it, the others tie with 8."""
    answers, correct = ["7", "7", "8"], [True, True, False]
    assert majority_at_k(answers, correct, [1, 2, 3]) == pytest.approx([2 / 3, (1 + 1 / 2 + 1 / 2) / 3, 1])
    assert majority_at_k(["7", "8", "8"], [True, False, False], [3]) == [0]
    assert majority_at_k(["7", None, None], [True, False, False], [2, 3]) == pytest.approx([2 / 3, 1])  # one vote
    assert majority_at_k([None, None], [False, False], [1, 2]) == [0, 0]


def test_votes_of_many_episodes():
    """A slight majority of a thousand, and draws whose number of ways exceeds a float."""
    answers = ["7"] * 60 + ["8"] * 40
    few, half, every = majority_at_k(answers, [answer == "7" for answer in answers], [1, 51, 100])
    assert few == pytest.approx(0.6) and 0.95 < half < 1 and every == pytest.approx(1)
    answers = ["7"] * 1000 + ["8"] * 1000  # choose(2000, 1000) exceeds a float
    assert majority_at_k(answers, [answer == "7" for answer in answers], [3]) == pytest.approx([0.5])


@pytest.mark.parametrize("k", [0, 3, -1])
def test_k_lies_within_the_episodes(k):
    for estimate in (lambda: majority_at_k(["7"] * 2, [True] * 2, [k]), lambda: distinct_at_k(["a"], 2, [k])):
        with rejects(InvalidArgument, "(2)", f"got {k}", key="k"):
            estimate()


# Measures of results --------------------------------------------------------------------------------------------------


def test_one_episode_is_the_success_rate_and_all_of_them_any_success():
    counts = [0, 1, 2, 4, 4, 0, 3]
    measured = of_successes(counts)
    intervals = {k: measured.estimate(PASS.at(k)) for k in (1, 2, N)}
    assert intervals[1] == measured.success
    assert intervals[N].value == pytest.approx(5 / 7)
    assert {k: item.value for k, item in intervals.items()} == pytest.approx(measured.pass_at_k)
    assert intervals[N] == of_successes([count > 0 for count in counts], tries=1).success
    for measure in (MAJORITY, SOLUTIONS):
        assert measured.estimate(measure.at(1)).value == pytest.approx(measured.success.value)


@pytest.mark.parametrize("measure", [PASS, MAJORITY, SOLUTIONS], ids=lambda measure: measure.name)
@pytest.mark.parametrize("count", [0, N])
def test_an_interval_contains_its_value_at_the_ends(measure, count):
    measured = result([[(i < count, "7" if i < count else "8", f"go {i}") for i in range(N)] for _ in range(6)])
    for interval in (measured.estimate(measure.at(k)) for k in (1, 2, 3, N)):
        assert interval.low <= interval.value <= interval.high
        assert measure.unit is not PERCENT or interval.high - interval.low > 0.05


def test_differences_by_hand():
    first, other = of_successes([0, 0, 1, 2, 0, 1]), of_successes([1, 2, 3, 2, 4, 1])
    compared = {k: first.difference(other, PASS.at(k)) for k in (1, 2, N)}
    (item,) = compare_results({"first": first, "other": other}).of(SUCCESS)
    assert (compared[1].rise, compared[1].p, compared[1].test) == (item.rise, item.p, item.test)
    assert compared[1] == first.difference(other, SUCCESS) and (compared[1].gained, compared[1].lost) == (4, 0)
    assert compared[N].p == 2 / 2**3 and compared[N].test == "exact McNemar"  # solved by any: three tasks gained
    assert compared[N].rise == paired_difference(([0, 0, 1, 1, 0, 1], [1] * 6), ([1] * 6, [1] * 6))
    rises = [3 / 6, 5 / 6, 6 / 6 - 3 / 6, 0, 1, 0]  # pass@2 of 0 to 4 successes: 0, 3, 5, 6 and 6 sixths
    assert compared[2].rise.value == pytest.approx(np.mean(rises)) and compared[2].p == pytest.approx(2 / 2**4)


def test_results_with_unlike_numbers_of_episodes():
    first, other = of_successes([0, 1, 2], tries=2), of_successes([3, 8, 8], tries=8)
    assert measures_of_k({"first": first, "other": other}) == [m.at(k) for m in (PASS, SOLUTIONS) for k in (1, 2)]
    assert first.difference(other, PASS.at(1)).rise.value == pytest.approx(19 / 24 - 3 / 6)
    assert measures_of_k({"once": of_successes([1], tries=1), "other": other}) == []
    with rejects(InvalidArgument, "first", "2 episodes", key="--pass-at", advice="--episodes-per-task 3"):
        measures_of_k({"first": first, "other": other}, [1, 3])


def test_random_signs_agree_with_all_of_them():
    rng = np.random.default_rng(5)
    before, after = rng.integers(0, 5, 12), rng.integers(1, 6, 12)
    exact = sign_flip_test((after - before).tolist())
    assert random_sign_flips(before / 7, after / 7) == pytest.approx(exact)  # of 12 tasks every sign is tried
    before, after = rng.integers(0, 5, 60), rng.integers(0, 6, 60)
    drawn = random_sign_flips(before / 7, after / 7)
    assert drawn == pytest.approx(sign_flip_test((after - before).tolist()), abs=0.02)
    assert drawn == random_sign_flips(before / 7, after / 7)
    assert random_sign_flips(before / 7, before / 7) == 1
    assert random_sign_flips(np.array([0.5, 1]), np.array([0, 1])) == sign_flip_test([1, 0]) == 1


# What a result stores -------------------------------------------------------------------------------------------------


def measures_in(results):
    """The measures at k = 1."""
    return measures_of_k({str(number): result for number, result in enumerate(results)}, [1])


def test_answers_and_solutions_survive_the_file_and_older_files_show_nothing():
    measured = result([[(True, "7", "add"), (True, "7", " add "), (True, "7", "sum"), (False, "8", "add")]] * 3)
    assert EvalResult.from_json(measured.to_json()) == measured
    assert measured.estimate(SOLUTIONS.at(N)).value == 2  # white space makes no other solution
    assert measures_in([measured]) == [PASS, MAJORITY, SOLUTIONS]
    document = json.loads(measured.to_json())
    for task in document["tasks"]:
        task["tries"] = [{k: v for k, v in item.items() if k not in ("answer", "solution")} for item in task["tries"]]
    older = EvalResult.from_json(json.dumps(document))
    assert measures_in([older]) == [PASS] == measures_in([measured, older])
    text = "\n".join(result_lines(older))
    assert "pass@k %" in text and "majority" not in text and "solutions" not in text


def test_one_episode_per_task_is_stored_as_before():
    once = result([[(True, "7")], [(False, "8")]], tries=1)
    assert "answer" not in once.to_json() and "solution" not in once.to_json()
    assert "pass@k" not in "\n".join(result_lines(once))


def test_a_model_that_never_answers_can_be_compared():
    silent, right = result([[(False,)] * N] * 3), result([[(True, "7")] * N] * 3)
    assert MAJORITY in measures_in([silent, right]) and MAJORITY not in measures_in([silent])
    assert silent.difference(right, MAJORITY.at(N)).rise.value == 1


@pytest.mark.parametrize(
    ("answer", "stored"),
    [
        ("\ud83d", "\\ud83d"),  # half a surrogate pair, which no file can hold
        ("", None),
        ("  ", None),
        (None, None),
        (7, "7"),
        (["7", 8], "['7', 8]"),
    ],
)
def test_any_answer_of_a_model_is_stored(answer, stored):
    measured = result([[(True, answer)] * 2], tries=2)
    assert measured.tasks[0].tries[0].answer == stored
    assert EvalResult.from_json(measured.to_json()) == measured


def test_long_answers_are_stored_as_hashes():
    long, other = (result([[(True, "1" * 10_000 + end)] * 2], tries=2).tasks[0].tries[0].answer for end in ("2", "3"))
    assert len(long) < 40 and long != other


def solution(*turns):
    episodes = [Episode("t", turns=list(turns), success=True, outcome="terminated", sample=i) for i in (0, 1)]
    return (
        EvalResult.from_episodes(episodes, EvaluatedTaskSet("e", "test", "h", 1, 2), "m", 1.0)
        .tasks[0]
        .tries[0]
        .solution
    )


def test_a_solution_is_its_accepted_actions():
    take, put = Turn("", "a", "take mug"), Turn("", "b", "put mug")
    assert solution(take, put) == solution(take, Turn("", "?", "", invalid="not parsed"), put)
    assert solution(take, put) == solution(
        Turn("", "other words", "take  mug"), Turn("", "", "fly", invalid="refused"), put
    )
    assert solution(take, put) != solution(put, take) != solution(take)
    assert solution(Turn("", "", "take mug put mug")) != solution(take, put)
    half = Turn.of_calls("two calls", [Call("take mug"), Call("", error="no such tool")])
    assert solution(half, put) == solution(take, put)
    assert solution(Turn("", "", "\ud83d")) != solution(take)


# Text -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 60, 100])
def test_tables_fit_and_contain_the_numbers(width):
    right, wrong = (True, "7", "add"), (False, "8", "sub")
    first = result([[right] + [wrong] * 3] * 12)
    other = result([[right] * 3 + [wrong]] * 12)
    compared = compare_results({"before": first, "a long label of a run": other})
    lines = compared.lines(width)
    assert all(len(line) <= width and line.isascii() for line in lines)
    text = " ".join(" ".join(lines).split())
    assert all(name in text for name in ("pass@k %", "majority@k %", "solutions@k", "+50.0 [", "1.00 [1.00, 1.00]"))
    of_k = compared.of(*compared.at_k)
    assert [item.measure for item in of_k] == [m.at(k) for m in (PASS, MAJORITY, SOLUTIONS) for k in (1, 2, N)]
    raw = [item.p for item in of_k if item.measure.name == MAJORITY.name]
    corrected = [item.p_holm for item in of_k if item.measure.name == MAJORITY.name]
    assert min(corrected) == pytest.approx(3 * min(raw))  # three values of k are three tests
    record = json.loads(json.dumps(compared.record()))
    assert record["at_k"]["before"]["pass@k"]["4"]["value"] == 1
    assert record["at_k_differences"][0]["measure"] == "pass@k" and record["at_k_differences"][0]["k"] == 1


def test_a_comparison_of_single_episodes_has_no_measures_unless_named():
    once = of_successes([0, 1, 1], tries=1)
    assert "pass@k" not in "\n".join(compare_results({"a": once, "b": once}).lines())
    named = compare_results({"a": once, "b": once}, [1])
    assert named.of(PASS.at(1))[0].p == 1 and "pass@k" in "\n".join(named.lines())
    assert "at_k" not in compare_results({"a": once, "b": replace(once, model="n")}).record()


@pytest.mark.parametrize(("text", "ks"), [("1", [1]), ("8,1, 64", [1, 8, 64]), ("2,2", [2]), ("004", [4])])
def test_the_k_of_an_option(text, ks):
    assert read_ks(text) == ks and read_ks(None) is None


@pytest.mark.parametrize("text", ["", "0", "-1", "1,,2", "1.5", "a", "1;2", "9" * 5000, "\uff11", "²"])
def test_wrong_k_of_an_option(text):
    with rejects(InvalidArgument, key="--pass-at"):
        read_ks(text)
