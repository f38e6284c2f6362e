"""State keys: which turns of a task group are in the same state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.credit.turns.errors import BadTurns

StateKey = Literal["auto", "state", "observation", "history"]
"""``state``: the state that the environment reports. ``observation``: its text. ``history``: all observations and
actions up to the turn. ``auto``: ``state`` if every turn has one, else ``observation``."""


def intern(keys: Iterable[Hashable]) -> np.ndarray:
    """Number keys by first appearance, int64[len(keys)].

    >>> intern(["kitchen", "hall", "kitchen"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), dtype=np.int64)


def resolved(episodes: Sequence[Episode], key: StateKey) -> StateKey:
    """The key that ``auto`` stands for in ``episodes``; other keys are returned as they are."""
    if key != "auto":
        return key
    named = all(turn.state is not None for episode in episodes for turn in episode.turns)
    return "state" if named else "observation"


def state_ids(episodes: Sequence[Episode], key: StateKey) -> tuple[np.ndarray, np.ndarray]:
    """Ids of each turn's state, int64[N], and of each episode's end state, int64[E].

    An unknown end state, and any with the key ``history``, has an id of its own. Environments do not share ids, and
    ``auto`` is resolved for each.

    Raises:
        BadTurns: ``key="state"`` and a turn has no state.
    """
    env_E = intern(getattr(episode, "environment", None) for episode in episodes)
    if not env_E.any():
        return _ids_of_one_env(episodes, key)
    env_N = np.repeat(env_E, [len(episode.turns) for episode in episodes])
    id_N, id_E, used = np.zeros(len(env_N), np.int64), np.zeros(len(env_E), np.int64), 0
    for env in range(int(env_E.max()) + 1):
        own = [episode for episode, of in zip(episodes, env_E, strict=True) if of == env]
        turn_ids, end_ids = _ids_of_one_env(own, key)
        id_N[env_N == env], id_E[env_E == env] = turn_ids + used, end_ids + used
        used += 1 + int(max(turn_ids.max(initial=-1), end_ids.max(initial=-1)))
    return id_N, id_E


def _ids_of_one_env(episodes: Sequence[Episode], key: StateKey) -> tuple[np.ndarray, np.ndarray]:
    key = resolved(episodes, key)
    for number, episode in enumerate(episodes if key == "state" else ()):
        for place, turn in enumerate(episode.turns):
            if turn.state is None:
                raise BadTurns(
                    f"key='state' requires the environment's state, and turn {place} of episode {number} "
                    f"(task {episode.task!r}) has none: use key='observation'"
                )
    if key == "history":
        keys, ends = list(_histories(episodes)), [("end of episode", number) for number in range(len(episodes))]
    elif key in ("observation", "state"):
        keys = [getattr(turn, key) for episode in episodes for turn in episode.turns]
        ends = [
            ("end of episode", number) if (end := getattr(episode, f"end_{key}")) is None else end
            for number, episode in enumerate(episodes)
        ]
    else:
        raise BadTurns(f"unknown key {key!r}; choose auto, state, observation or history")
    ids = intern([*keys, *ends])
    return ids[: len(keys)], ids[len(keys) :]


def _histories(episodes: Sequence[Episode]) -> Iterable[Hashable]:
    """A number per turn, equal for equal observations and actions so far; linear in the turns."""
    numbers: dict[Hashable, int] = {}
    for episode in episodes:
        past, action = -1, ""
        for turn in episode.turns:
            past = numbers.setdefault((past, action, turn.observation), len(numbers))
            action = turn.action
            yield past
