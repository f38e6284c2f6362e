"""A sample of the hard tests; `make test-hard` runs as many as there is time for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hard.actions import actions
from tests.hard.calls import calls
from tests.hard.damages import damages
from tests.hard.documents import documents
from tests.hard.handed_on import exports, journals, views
from tests.hard.interruptions import interruptions
from tests.hard.kills import kills
from tests.hard.listeners import requests
from tests.hard.mutations import KINDS, mutations
from tests.hard.outcome import FINE, REFUSED, Tally
from tests.hard.queries import queries
from tests.hard.ranks import ranks
from tests.hard.servers import answers

pytestmark = pytest.mark.slow


def without_faults(*tallies: Tally) -> None:
    assert [fault for tally in tallies for fault in tally.faults] == []


def test_random_kills(tmp_path: Path) -> None:
    tally = kills(tmp_path, 2, seed=1)
    without_faults(tally)
    assert tally.counts[FINE] >= 2


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


def test_hostile_actions(tmp_path: Path) -> None:
    tallies = actions(tmp_path, 500, seed=1)
    without_faults(*tallies)
    assert all(tally.counts[FINE] >= 500 for tally in tallies)


def test_hostile_tool_calls(tmp_path: Path) -> None:
    tallies = calls(tmp_path, 700, seed=1)
    without_faults(*tallies)
    assert all(min(tally.counts[FINE], tally.counts[REFUSED]) > 50 for tally in tallies)


def test_hostile_answers(tmp_path: Path) -> None:
    tallies = answers(tmp_path, 200, seed=1)
    without_faults(*tallies)
    text, tokens = tallies
    assert text.counts[FINE] > 100  # it asks again, the others leave it to their caller
    assert tokens.counts[REFUSED] > 100


def test_hostile_requests(tmp_path: Path) -> None:
    tallies = requests(tmp_path, 500, seed=1)
    without_faults(*tallies)
    assert all(min(tally.counts[FINE], tally.counts[REFUSED]) > 10 for tally in tallies)


def test_hostile_queries(tmp_path: Path) -> None:
    tally = queries(tmp_path, 60, seed=1)
    without_faults(tally)
    assert min(tally.counts[FINE], tally.counts[REFUSED]) > 2


def test_random_documents(tmp_path: Path) -> None:
    tally = documents(tmp_path, 60, seed=1)
    without_faults(tally)
    assert tally.counts[REFUSED] > 20


def test_mutations_of_what_is_handed_on(tmp_path: Path) -> None:
    for part in (exports, journals, views):
        (tmp_path / part.__name__).mkdir()
        tallies = part(tmp_path / part.__name__, 20, seed=1)
        assert len(tallies) == 2
        without_faults(*tallies)


def test_a_rank_that_is_lost(tmp_path: Path) -> None:
    without_faults(ranks(tmp_path, 1, seed=1))
