"""Every measure: its values, its interval and its paired test over tasks or clusters, and how they are written."""

import pytest

from gagpo.eval.measures import FIRST, OF_K, PASS, REWARD, SUCCESS
from gagpo.eval.statistics import Interval, mean_over_seeds
from gagpo.eval.tries import TaskResult, Try
from gagpo.eval.units import COUNT, PERCENT, REWARDS

EACH = [*FIRST, *(measure.at(k) for measure in OF_K for k in (1, 2, 3))]
NAMES = [f"{measure.name} {measure.k}" for measure in EACH]


def tasks(counts, tries=3):
    """Tasks with that many successes, each with a solution of its own; a success is worth 0.5 more than a failure."""

    def attempt(number, success):
        solution = f"s{number}" if success else None
        return Try(success, 0.25 + 0.5 * success, 1, 0, answer=str(success), solution=solution)

    return [
        TaskResult(f"t{number}", "", tuple(attempt(i, i < count) for i in range(tries)))
        for number, count in enumerate(counts)
    ]


LOW, HIGH = tasks([0, 1, 0, 2, 1, 0, 1, 0]), tasks([3, 2, 3, 2, 3, 1, 3, 2])


@pytest.mark.parametrize("measure", EACH, ids=NAMES)
def test_the_estimate_is_the_mean_over_tasks_and_lies_in_its_interval(measure):
    interval = measure.estimate(HIGH)
    assert interval.value == pytest.approx(measure.values(HIGH).mean())
    assert interval.low <= interval.value <= interval.high


@pytest.mark.parametrize("measure", EACH, ids=NAMES)
def test_a_difference_is_paired_by_task(measure):
    there, back = measure.difference(LOW, HIGH), measure.difference(HIGH, LOW)
    rises = measure.values(HIGH) - measure.values(LOW)
    assert there.rise.value == pytest.approx(rises.mean()) and there.rise.low <= there.rise.value <= there.rise.high
    assert (there.gained, there.lost) == (back.lost, back.gained) == ((rises > 0).sum(), 0)
    assert there.p == pytest.approx(back.p) and there.p == pytest.approx(2 / 2**there.gained)
    assert measure.difference(LOW, LOW).p == 1 and measure.difference(LOW, LOW).rise.value == 0


@pytest.mark.parametrize("measure", EACH, ids=NAMES)
def test_clusters_are_the_units_of_intervals_and_tests(measure):
    halves = ["a", "b"] * 4
    compared = measure.difference(LOW, HIGH, halves)
    assert compared.test == "sign flips over 2 clusters" and compared.p == 2 / 2**2
    assert measure.estimate(LOW, [task.task for task in LOW]).value == measure.estimate(LOW).value


def test_means_count_every_try_and_measures_of_k_every_task():
    unlike = [*tasks([1], tries=1), *tasks([0], tries=3)]
    assert SUCCESS.estimate(unlike).value == 1 / 4 and REWARD.estimate(unlike).value == pytest.approx(1.5 / 4)
    assert PASS.values(unlike).tolist() == SUCCESS.values(unlike).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("unit", "text"), [(PERCENT, "+0.0 ± 0.5"), (COUNT, "+0.00 ± 0.01"), (REWARDS, "-0.00030 ± 0.00500")]
)
def test_only_a_difference_that_rounds_to_zero_has_no_minus(unit, text):
    assert unit.spread(Interval(-0.0003, -0.0053, 0.0047), signed=True) == text


def test_a_single_seed_has_no_spread():
    assert PERCENT.spread(mean_over_seeds([0.5])) == "50.0" and PERCENT.spread(Interval(*3 * [float("nan")])) == ""
    assert [unit.interval(Interval(0.5, 0.25, 0.75)) for unit in (PERCENT, REWARDS, COUNT)] == [
        "50.0 [25.0, 75.0]", "0.500 [0.250, 0.750]", "0.50 [0.25, 0.75]",
    ]  # fmt: skip
