"""Dispersion and skewness of groups against the standard library, scipy and hand-computed numbers."""

import math
import statistics

import numpy as np
import pytest
from scipy.stats import iqr, median_abs_deviation, skew

from gagpo.credit.statistics.dispersion import group_dispersion, group_quantile, group_skewness


@pytest.fixture(scope="module")
def groups():
    """Values in mixed order, and the members of each of six groups of one to nine."""
    rng = np.random.default_rng(0)
    group_E = rng.permutation(np.repeat(np.arange(6), [1, 2, 3, 5, 8, 9]))
    value_E = rng.choice([0.0, 1.0, 0.5, 10.0, -3.0], len(group_E))
    return value_E, group_E, [value_E[group_E == group] for group in range(6)]


@pytest.mark.parametrize(
    ("dispersion", "independent"),
    [
        ("std", lambda values: statistics.stdev(values) if len(values) > 1 else 0.0),
        ("mad", lambda values: 1.4826 * median_abs_deviation(values)),
        ("iqr", lambda values: iqr(values) / 1.349),
    ],
)
def test_dispersions(groups, dispersion, independent):
    value_E, group_E, members = groups
    expected = [independent(values) for values in members]
    assert group_dispersion(value_E, group_E, 6, dispersion) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_quantiles_are_numpys(groups, quantile):
    value_E, group_E, members = groups
    expected = [np.quantile(values, quantile) for values in members]
    assert group_quantile(value_E, group_E, 6, quantile) == pytest.approx(expected)


def test_the_textbooks_skewness_is_scipys(groups):
    value_E, group_E, members = groups
    expected = [skew(values, bias=False) if len(values) > 2 and len(set(values)) > 1 else 0.0 for values in members]
    assert group_skewness(value_E, group_E, 6, "g1") == pytest.approx(expected, abs=1e-9)


def test_the_authors_skewness_of_seven_is_a_fifth_smaller():
    value, group = np.array([1.0, 0, 0, 0, 0, 0, 0]), np.zeros(7, np.int64)
    textbook, authors = (group_skewness(value, group, 1, format)[0] for format in ("g1", "authors"))
    assert textbook == pytest.approx(math.sqrt(7))
    assert authors / textbook == pytest.approx((6 / 7) ** 1.5) == pytest.approx(0.794, abs=5e-4)


@pytest.mark.parametrize("form", ["g1", "authors"])
def test_a_skewness_is_0_without_spread_or_in_small_groups_and_is_bounded(form):
    value = np.array([0.1, 0.1, 0.1, 3.0, 1.0, 2.0, 0.0, 1.0])
    group = np.array([0, 0, 0, 1, 2, 2, 3, 3])
    assert group_skewness(value, group, 4, form).tolist() == [0, 0, 0, 0]
    extreme = np.zeros(400)
    extreme[0] = -1.0
    assert group_skewness(extreme, np.zeros(400, np.int64), 1, form).tolist() == [-10]
