"""State keys: which turns of a task group are in the same state.

Keys become integers once, in the order of appearance, so that credits compare numbers and never texts. The order does
not depend on hashes: a run repeats in another process, where Python hashes texts otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal, get_args

import numpy as np

from gagpo.data.episode import Episode
from gagpo.data.errors import BadTurns

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


def state_ids(episodes: Sequence[Episode], key: StateKey) -> tuple[np.ndarray, np.ndarray]:
    """Ids of each turn's state, int64[N], and of each episode's end state, int64[E].

    An unknown end state, and any with the key ``history``, gets an id that no other state has. Environments do not
    share ids, and ``auto`` is resolved for each.

    Raises:
        BadTurns: ``key="state"`` and a turn has no state.
    """
    if key not in get_args(StateKey):
        raise BadTurns(f"unknown key {key!r}", advice="choose auto, state, observation or history")
    if key == "state":
        _require_states(episodes)
    stateless_envs = {episode.environment for episode in episodes if any(turn.state is None for turn in episode.turns)}
    histories = _histories(episodes) if key == "history" else iter(())
    turn_keys: list[Hashable] = []
    end_keys: list[Hashable] = []
    for number, episode in enumerate(episodes):
        env = episode.environment
        key_type: str = key
        if key == "auto":
            key_type = "observation" if env in stateless_envs else "state"
        for turn in episode.turns:
            turn_keys.append((env, next(histories) if key_type == "history" else getattr(turn, key_type)))
        end = None if key_type == "history" else getattr(episode, f"end_{key_type}")
        end_keys.append(("end of episode", number) if end is None else (env, end))
    ids = intern([*turn_keys, *end_keys])
    return ids[: len(turn_keys)], ids[len(turn_keys) :]


def _require_states(episodes: Sequence[Episode]) -> None:
    for number, episode in enumerate(episodes):
        for index, turn in enumerate(episode.turns):
            if turn.state is None:
                raise BadTurns(
                    (
                        f"key='state' requires the environment's state, and turn {index} of episode {number} "
                        f"(task {episode.task!r}) has none"
                    ),
                    key="key",
                    advice="use key='observation'",
                )


def _histories(episodes: Sequence[Episode]) -> Iterator[Hashable]:
    """A number per turn, equal for equal observations and actions so far; linear in the turns.

    Each number stands for the whole history up to a turn, so a key is three values, not a growing list.
    """
    numbers: dict[Hashable, int] = {}
    for episode in episodes:
        past, action = -1, ""
        for turn in episode.turns:
            past = numbers.setdefault((past, action, turn.observation), len(numbers))
            action = turn.action
            yield past
