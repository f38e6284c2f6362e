"""State keys and aliasing."""

import math
from dataclasses import replace

import pytest

from gagpo.credit import BadTurns, turns_for
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.statistics.aliasing import aliasing
from gagpo.data import Episode, Turn, turns_from_episodes
from gagpo.eval.health import health
from tests.rejections import rejects


def episode(*steps: tuple[str, str, str | None], refused: tuple[int, ...] = (), **more) -> Episode:
    """Steps are (observation, action, state)."""
    turns = [Turn(text, action, action, state=state) for text, action, state in steps]
    for location in refused:
        turns[location] = replace(turns[location], invalid="refused")
    return Episode("t", turns=turns, **more)


SHUT = episode(("Hall.", "open", "shut"), ("Nothing happens.", "go", "shut"), refused=(0,))
OPEN = episode(("Hall.", "lift", "shut"), ("Nothing happens.", "go", "shut"), ("Attic.", "go", "up"), refused=(0,))


def test_auto_uses_states_if_every_turn_has_one():
    assert turns_from_episodes([SHUT, OPEN], "auto").state_N.tolist() == [0, 0, 0, 0, 1]
    nameless = episode(("Hall.", "open", None))
    assert turns_from_episodes([SHUT, nameless], "auto").state_N.tolist() == [0, 1, 0]
    assert turns_for([SHUT, OPEN], Graphgpo()).states().max() == 1
    with rejects(BadTurns, key="key", advice="key='observation'"):
        turns_from_episodes([nameless], "state")


def test_aliasing_counts_actions_with_two_results():
    by_text, by_state = (turns_from_episodes([SHUT, OPEN, OPEN], key) for key in ("observation", "state"))
    # "open" and "lift" are two actions; "lift" then "go" is repeated, and always came to the same.
    assert aliasing(by_text) == 0 and aliasing(by_state) == 0
    other = episode(("Hall.", "lift", "dark"), ("Nothing happens.", "go", "dark"), ("Cellar.", "go", "down"))
    assert aliasing(turns_from_episodes([OPEN, other], "observation")) == 0.5  # "go" after a refusal, not "lift"
    assert math.isnan(aliasing(turns_from_episodes([OPEN, other], "state")))
    assert aliasing(turns_from_episodes([OPEN, other, other], "state")) == 0


def test_aliasing_is_within_a_task():
    turns = [("Hall.", "go", None), ("Attic.", "go", None)]
    item = episode(*turns, group=0)
    two = episode(turns[0], ("Cellar.", "go", None), group=1)
    assert math.isnan(aliasing(turns_from_episodes([item, two])))
    two.group = 0
    assert aliasing(turns_from_episodes([item, two])) == 1


@pytest.mark.parametrize(("share", "level"), [(0.0, "good"), (0.1, "watch"), (0.3, "bad")])
def test_health_reports_aliased_keys(share, level):
    (results,) = [item for item in health([{"aliasing": share}]) if "repeated in one state" in item.sentence]
    assert results.level == level
    assert ("algorithm.credit.state_key" in results.sentence) == (level == "bad")
