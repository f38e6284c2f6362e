"""A sample of the hard tests; `make test-hard` runs as many as there is time for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("gagpo.agents.engines.remote")
pytest.importorskip("gagpo.envs.sql")
pytest.importorskip("gagpo.envs.web")

from tests.hard.damages import damages
from tests.hard.hostile import actions, answers, queries
from tests.hard.interruptions import interruptions
from tests.hard.kills import kills
from tests.hard.mutations import KINDS, mutations
from tests.hard.outcome import FINE, REFUSED, Tally
from tests.hard.ranks import ranks
from tests.hard.web import web_actions, web_kills

pytestmark = pytest.mark.slow


def without_faults(*tallies: Tally) -> None:
    assert [fault for tally in tallies for fault in tally.faults] == []


def test_random_kills(tmp_path: Path) -> None:
    tally = kills(tmp_path, 5, seed=1)
    without_faults(tally)
    assert tally.counts[FINE] >= 5


def test_random_interruptions(tmp_path: Path) -> None:
    tally = interruptions(tmp_path, 10, seed=1)
    without_faults(tally)
    assert tally.counts[FINE] == 10


def test_random_damages_of_checkpoints(tmp_path: Path) -> None:
    tally = damages(tmp_path, 30, seed=1)
    without_faults(tally)
    assert tally.counts[REFUSED] > 20


def test_mutations_of_every_kind_of_file(tmp_path: Path) -> None:
    tallies = mutations(tmp_path, 6 * len(KINDS), seed=1)
    assert len(tallies) == len(KINDS)
    without_faults(*tallies)


def test_a_rank_that_is_lost(tmp_path: Path) -> None:
    without_faults(ranks(tmp_path, 1, seed=1))


def test_hostile_actions(tmp_path: Path) -> None:
    tallies = actions(tmp_path, 300, seed=1)
    without_faults(*tallies)
    assert all(tally.counts[FINE] >= 300 for tally in tallies)


@pytest.mark.browser
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_hostile_actions_on_web_pages(tmp_path: Path) -> None:
    tallies = web_actions(tmp_path, 200, seed=1)
    without_faults(*tallies)
    assert all(min(tally.counts[FINE], tally.counts[REFUSED]) > 10 for tally in tallies)


@pytest.mark.browser
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_killed_browsers(tmp_path: Path) -> None:
    tally = web_kills(tmp_path, 4, seed=1)
    without_faults(tally)
    assert tally.counts[FINE] == 4


def test_hostile_queries(tmp_path: Path) -> None:
    tally = queries(tmp_path, 60, seed=1)
    without_faults(tally)
    assert min(tally.counts[FINE], tally.counts[REFUSED]) > 2


def test_hostile_answers_of_model_servers(tmp_path: Path) -> None:
    chat, tokens = answers(tmp_path, 100, seed=1)
    without_faults(chat, tokens)
    assert chat.counts[FINE] > 50  # the chat client asks again
    assert tokens.counts[REFUSED] > 50
