"""Intervals and tests against published tables, brute force and identities."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from gagpo.base.errors import InvalidArgument
from gagpo.eval.statistics import (
    area_under_curve,
    cluster_bootstrap,
    clustered_wilson,
    detectable_difference,
    detectable_rise,
    holm,
    mean_over_seeds,
    paired_difference,
    paired_t,
    paired_test,
    pass_at_k,
    sign_flip_test,
    wilson,
)
from tests.rejections import rejects


def test_scipy_is_imported_where_it_is_needed_alone():
    code = "import sys, gagpo.eval.compare, gagpo.eval.study; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.5, 0.999))
@settings(deadline=None, max_examples=50)
def test_wilson_is_that_of_scipy(successes, failures, level):
    assume(successes + failures)
    expected = binomtest(successes, successes + failures).proportion_ci(level, "wilson")
    results = wilson(successes, successes + failures, level)
    assert (results.low, results.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.5, 0.999))
@settings(deadline=None, max_examples=100)
def test_wilson_is_inside_the_unit_interval_and_mirrors(successes, failures, level):
    trials = successes + failures
    interval, mirror = wilson(successes, trials, level), wilson(failures, trials, level)
    assert 0 <= interval.low < interval.high <= 1
    if trials:
        assert interval.low <= interval.value <= interval.high
        assert interval.low == pytest.approx(1 - mirror.high, abs=1e-12)


@pytest.mark.parametrize("arguments", [(5, 4), (-1, 4), (1, 4, 1.0), (1, 4, 0.0)])
def test_wilson_refuses_impossible_numbers(arguments):
    with pytest.raises(ValueError):
        wilson(*arguments)


def test_one_try_per_task_gives_the_plain_wilson_interval():
    clustered, plain = clustered_wilson([1, 0, 0, 1, 1], [1] * 5), wilson(3, 5)
    assert (clustered.low, clustered.high) == pytest.approx((plain.low, plain.high), abs=1e-12)


def test_repeating_every_try_adds_no_certainty():
    # Eight equal tries per task say no more about new tasks than one does.
    once, eight = clustered_wilson([1, 0, 0, 1, 1], [1] * 5), clustered_wilson([8, 0, 0, 8, 8], [8] * 5)
    assert (once.low, once.high) == pytest.approx((eight.low, eight.high))


def test_tries_that_differ_only_by_chance_count_almost_fully():
    rng = np.random.default_rng(3)
    successes = rng.binomial(8, 0.5, size=400).tolist()
    clustered, plain = clustered_wilson(successes, [8] * 400), wilson(sum(successes), 3200)
    assert clustered.high - clustered.low == pytest.approx(plain.high - plain.low, rel=0.1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
@settings(deadline=None, max_examples=100)
def test_clustered_interval_is_never_narrower_than_plain_nor_wider_than_one_per_task(successes):
    tasks = len(successes)
    interval = clustered_wilson(successes, [4] * tasks)
    plain, rate = wilson(sum(successes), 4 * tasks), sum(successes) / (4 * tasks)
    widest = wilson(rate * tasks, tasks)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    assert plain.high - plain.low - 1e-9 <= interval.high - interval.low <= widest.high - widest.low + 1e-9


def test_no_task_at_all_says_nothing():
    interval = clustered_wilson([], [])
    assert math.isnan(interval.value) and (interval.low, interval.high) == (0.0, 1.0)


@pytest.mark.parametrize(("rate", "stay", "come"), [(0.3, 0.8, 0.4), (0.5, 0.9, 0.1)])
def test_paired_difference_covers_the_true_rise_as_often_as_it_says(rate, stay, come):
    """Exact coverage: every outcome of 24 pairs, weighed with its multinomial probability."""
    n, covered = 24, 0.0
    cells = [rate * stay, rate * (1 - stay), (1 - rate) * come, (1 - rate) * (1 - come)]
    truth = cells[2] - cells[1]
    for both, lost, gained in itertools.product(range(n + 1), repeat=3):
        none = n - both - lost - gained
        if none < 0:
            continue
        numbers = (both, lost, gained, none)
        chance = math.exp(math.lgamma(n + 1) - sum(math.lgamma(k + 1) for k in numbers)) * math.prod(
            p**k for p, k in zip(cells, numbers, strict=True)
        )
        before = [1] * (both + lost) + [0] * (gained + none)
        after = [1] * both + [0] * lost + [1] * gained + [0] * none
        interval = paired_difference((before, [1] * n), (after, [1] * n))
        covered += chance * (interval.low <= truth <= interval.high)
    assert 0.93 <= covered <= 0.998


def test_paired_difference_by_hand():
    """Ten tasks, 4 solved before, 7 after, all 4 of them again: ad - bc = 12, less n / 2 = 5."""
    before, after = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    correlation = (4 * 3 - 0 * 3 - 10 / 2) / math.sqrt(4 * 6 * 7 * 3)
    a, b = wilson(4, 10), wilson(7, 10)
    down, up = (b.value - b.low, a.high - a.value), (b.high - b.value, a.value - a.low)
    expected = [
        0.3 - math.sqrt(down[0] ** 2 - 2 * correlation * down[0] * down[1] + down[1] ** 2),
        0.3 + math.sqrt(up[0] ** 2 - 2 * correlation * up[0] * up[1] + up[1] ** 2),
    ]
    interval = paired_difference((before, [1] * 10), (after, [1] * 10))
    assert [interval.value, interval.low, interval.high] == pytest.approx([0.3, *expected])


def test_paired_difference_agrees_with_the_published_example():
    # Newcombe (1998): 20 pairs both, 12 only the one, 2 only the other, 16 neither; method 10 gives .0562 to .3292.
    item, other = [1] * 32 + [0] * 18, [1] * 20 + [0] * 12 + [1] * 2 + [0] * 16
    interval = paired_difference((other, [1] * 50), (item, [1] * 50))
    assert (interval.low, interval.value, interval.high) == pytest.approx((0.0562, 0.2, 0.3292), abs=5e-5)


def test_equal_results_leave_room_for_a_difference():
    interval = paired_difference(([1, 1, 0, 0], [1] * 4), ([1, 1, 0, 0], [1] * 4))
    assert interval.value == 0 and interval.low < -0.1 and interval.high == pytest.approx(-interval.low)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_swapping_the_sides_negates_the_difference(pairs):
    tries = [3] * len(pairs)
    item, two = ([a for a, _ in pairs], tries), ([b for _, b in pairs], tries)
    forth, back = paired_difference(item, two), paired_difference(two, item)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-9)
    assert -1 <= forth.low <= forth.value + 1e-12 and forth.value <= forth.high + 1e-12 <= 1 + 1e-9
    assert paired_test(item, two)[0] == pytest.approx(paired_test(two, item)[0])


def test_sign_flips_of_single_tries_are_mcnemar_by_hand():
    assert sign_flip_test([1] * 10 + [-1] * 2 + [0] * 40) == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert sign_flip_test([-1] * 10 + [1] * 2) == sign_flip_test([1] * 10 + [-1] * 2)
    assert sign_flip_test([]) == sign_flip_test([1, 1, 1, -1, -1, -1]) == 1.0
    assert sign_flip_test([1] * 2000) == pytest.approx(0.0, abs=1e-300)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
@settings(deadline=None, max_examples=100)
def test_sign_flips_of_whole_numbers_equal_trying_all_of_them(differences):
    observed = abs(sum(differences))
    flips = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(flip, differences, strict=True))) for flip in flips]
    assert sign_flip_test(differences) == pytest.approx(sum(x >= observed for x in sums) / len(sums))


def test_paired_test_compares_rates_when_the_numbers_of_tries_differ():
    same_rates = paired_test(([1, 2, 0], [2, 2, 2]), ([2, 4, 0], [4, 4, 4]))
    assert same_rates == (1.0, "sign flips over tasks")
    # All of six tasks rise: only the two one-sided sign patterns of 2^6 are as extreme.
    assert paired_test(([0] * 6, [2] * 6), ([3] * 6, [3] * 6))[0] == pytest.approx(2 / 64)
    assert paired_test(([0] * 6, [1] * 6), ([1] * 6, [1] * 6)) == (pytest.approx(2 / 64), "exact McNemar")
    with rejects(ValueError, "same tasks"):
        paired_test(([0], [1]), ([0, 1], [1, 1]))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_bootstrap_of_a_mean_is_close_to_the_normal_interval_and_repeats_itself():
    rng = np.random.default_rng(0)
    values = rng.normal(5.0, 2.0, size=300).tolist()
    interval = cluster_bootstrap(values, [1] * 300)
    half = 1.96 * np.std(values) / math.sqrt(300)
    assert interval.value == pytest.approx(np.mean(values))
    assert (interval.low, interval.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.05)
    np.random.seed(1)
    assert cluster_bootstrap(values, [1] * 300) == interval
    assert cluster_bootstrap(values, [1] * 300, seed=1) != interval


def test_bootstrap_resamples_whole_tasks():
    # Ten tasks of 100 equal tries each: as uncertain as ten tries, not as a thousand.
    interval = cluster_bootstrap([0.0] * 5 + [100.0] * 5, [100.0] * 10)
    assert interval.value == 0.5 and interval.low <= 0.25 and interval.high >= 0.75
    assert math.isnan(cluster_bootstrap([0.0], [0.0]).value)


def test_mean_over_seeds_by_hand():
    # 1, 2, 3: mean 2, standard deviation 1, t(.975, 2) = 4.30265.
    interval = mean_over_seeds([1.0, 2.0, 3.0])
    assert (interval.low, interval.high) == pytest.approx((2 - 4.3026527 / 3**0.5, 2 + 4.3026527 / 3**0.5))
    assert mean_over_seeds([4.0]).high == math.inf
    for bad in ([], [math.nan]):
        with rejects(ValueError, "finite number"):
            mean_over_seeds(bad)


def test_the_t_test_by_hand():
    """t = mean/sd*sqrt(n) of 1, 2, 3 is 3.464 with two degrees of freedom: p = 1 - t/sqrt(t*t + 2)."""
    t = 2 / math.sqrt(1 / 3)
    assert paired_t([1, 2, 3]) == pytest.approx(1 - t / math.sqrt(t * t + 2), abs=1e-9)
    assert paired_t([0, 0]) == 1
    assert math.isnan(paired_t([-1 / 144, 1 / 12 - 13 / 144]))  # two equal differences of counts prove nothing
    with pytest.raises(ValueError):
        paired_t([1])


def test_area_is_the_mean_height():
    assert area_under_curve([0, 1, 3], [0, 1, 1]) == pytest.approx((0.5 + 2) / 3)
    assert area_under_curve([10, 20], [0.25, 0.25]) == pytest.approx(0.25)
    assert area_under_curve([7], [0.4]) == 0.4
    with rejects(ValueError, "rise strictly"):
        area_under_curve([0, 0], [1, 1])


# Several tries at a task ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tries", "successes", "k"), [(4, 0, 2), (4, 1, 1), (4, 4, 3), (7, 2, 3), (7, 3, 5), (7, 1, 7)]
)
def test_pass_at_k_is_the_share_of_draws_with_a_success(tries, successes, k):
    draws = list(itertools.combinations([True] * successes + [False] * (tries - successes), k))
    assert pass_at_k(tries, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_with_large_numbers():
    # The binomial coefficients have 600 digits here.
    expected = 1 - math.prod((2000 - 10 - i) / (2000 - i) for i in range(1000))
    assert pass_at_k(2000, 10, 1000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pass_at_k(3, 1, 4),
        lambda: pass_at_k(3, 1, 0),
        lambda: pass_at_k(3, 4, 1),
    ],
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_a_detectable_difference_is_found_as_often_as_it_says(seeds):
    rng = np.random.default_rng(seeds)
    values = rng.normal(size=seeds)
    difference = detectable_difference(values)
    pairs = rng.normal(difference, np.sqrt(2) * values.std(ddof=1), size=(4000, seeds))
    results = np.mean([paired_t(pair) < 0.05 for pair in pairs])
    assert abs(results - 0.8) < 0.025


@pytest.mark.parametrize(("units", "tasks_of_each"), [(20, 1), (200, 1), (20, 10)])
def test_a_detectable_rise_is_found_as_often_as_it_says(units, tasks_of_each):
    """Tasks, or rooms of ten tasks, whose differences have a spread of exactly 1."""
    rng = np.random.default_rng(units)
    spread = rng.normal(size=units)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    tasks = np.repeat(spread / tasks_of_each, tasks_of_each)
    rooms = None if tasks_of_each == 1 else np.repeat(np.arange(units), tasks_of_each).tolist()
    rise = detectable_rise(np.zeros(len(tasks)), tasks, clusters=rooms)
    again = rng.normal(rise * tasks_of_each, size=(4000, units))
    assert abs(np.mean([paired_t(row) < 0.05 for row in again]) - 0.8) < 0.025


def test_equal_tasks_show_nothing_and_one_task_neither():
    assert detectable_rise([0, 1, 1], [0, 1, 1]) == 0
    assert detectable_rise([0], [1]) == np.inf


def test_one_seed_shows_no_difference():
    assert detectable_difference([0.5]) == np.inf
    with rejects(InvalidArgument, key="power"):
        detectable_difference([0.4, 0.5], power=0.01)


# Clusters of tasks ----------------------------------------------------------------------------------------------------


def test_clusters_of_one_task_differ_from_tasks_only_by_students_t():
    successes, tries = [1, 0, 0, 1, 1] * 40, [1] * 200
    plain, clustered = clustered_wilson(successes, tries), clustered_wilson(successes, tries, clusters=range(200))
    assert plain.low - 0.002 < clustered.low < plain.low and plain.high < clustered.high < plain.high + 0.002
    assert (
        paired_test((successes, tries), (tries, tries), range(200))[0]
        == paired_test((successes, tries), (tries, tries))[0]
    )


def test_a_single_cluster_says_nothing_about_others():
    interval = clustered_wilson([1] * 9 + [0], [1] * 10, clusters=["kitchen"] * 10)
    assert (interval.value, interval.low, interval.high) == (0.9, 0.0, 1.0)
    assert paired_test(([0] * 10, [1] * 10), ([1] * 10, [1] * 10), ["kitchen"] * 10) == (
        1.0,
        "sign flips over 1 clusters",
    )


def test_intervals_over_few_clusters_cover_the_rate_of_new_ones():
    """Rooms differ in difficulty: intervals over games miss the mean over rooms, those over rooms cover it."""
    rng = np.random.default_rng(5)
    rooms, games, covered = 6, 20, {"games": 0, "rooms": 0}
    clusters = np.repeat(np.arange(rooms), games)
    for _ in range(400):
        rates = rng.beta(4, 2, size=rooms)  # mean 2/3
        solved = rng.random(rooms * games) < rates[clusters]
        for name, by in (("games", None), ("rooms", clusters.tolist())):
            interval = clustered_wilson(solved, np.ones(rooms * games), clusters=by)
            covered[name] += interval.low <= 2 / 3 <= interval.high
    assert covered["games"] < 0.75 * 400 and covered["rooms"] > 0.92 * 400


def test_four_clusters_never_give_a_small_p():
    clusters = [number // 25 for number in range(100)]
    p, name = paired_test(([0] * 100, [1] * 100), ([1] * 100, [1] * 100), clusters)
    assert (p, name) == (2 / 2**4, "sign flips over 4 clusters")


def test_a_bootstrap_draws_whole_clusters():
    rewards = [1.0] * 50 + [0.0] * 50
    over_tasks = cluster_bootstrap(rewards, np.ones(100))
    over_rooms = cluster_bootstrap(rewards, np.ones(100), clusters=[number // 10 for number in range(100)])
    assert over_rooms.value == over_tasks.value == 0.5
    assert over_rooms.high - over_rooms.low > 2.5 * (over_tasks.high - over_tasks.low)
