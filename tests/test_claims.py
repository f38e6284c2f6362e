"""Sentences with numbers say what the committed rows say."""

from pathlib import Path

import pytest

from tests.ci_tools import tool

ROOT = Path(__file__).parents[1]


claims = tool("claims")
CLAIMS = claims.claims()


@pytest.mark.parametrize("claim", CLAIMS, ids=range(len(CLAIMS)))
def test_a_page_says_what_the_rows_say(claim):
    assert claim.is_made, f"{claim.page} must say: {claim.text}"


def test_every_number_with_a_spread_has_rows():
    assert claims.unproved() == []


def test_rows_that_change_make_another_claim(monkeypatch):
    rows = claims.study("credits-household", None).rows
    worse = [row.model_copy(update={"after": row.after - 0.1}) if row.label == "gagpo" else row for row in rows]
    monkeypatch.setattr(claims, "study", lambda name, baseline=None: claims.Study.of(worse, baseline))
    assert claims.difference("credits-household", "gagpo", "grpo") == "-7.5 ± 0.6"
