"""The formulas of scaling compared with what one and two ranks send here."""

import pytest

from benchmarks import scaling
from tests.folders import needs


@needs("agents/engines/remote")
def test_one_rank_agrees_with_the_formulas():
    (result,) = scaling.measure((1,))
    assert result["gathered"] == result["reduced"] == result["episodes"] == 0.0
    assert scaling.is_within([result])


@pytest.mark.slow
def test_two_gloo_ranks_agree_with_the_formulas():
    results = scaling.measure((2,))
    assert results[0]["gathered"] > 0 and results[0]["reduced"] > 0 and results[0]["episodes"] > 0
    assert scaling.is_within(results), "\n".join(scaling.differences(results).lines())


def test_a_difference_is_reported():
    result = {"ranks": 2.0, "gathered": 111.0, "gathered_expected": 100.0}
    result |= dict.fromkeys(("reduced", "reduced_expected", "episodes", "episodes_expected"), 5.0)
    assert not scaling.is_within([result])
    assert "+11.0%" in "\n".join(scaling.differences([result]).lines())
