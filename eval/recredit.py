"""Credit of episodes that were saved: what an algorithm would have made of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gagpo.credit import CreditSettings, Turns, advantages, intern, value_proxy
from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.eval.viewer.records import EpisodeRecord, Explained
from gagpo.settings import SettingsError, load


class Recredit:
    """Gives each of ``credits`` to batches of saved episodes; see :class:`gagpo.eval.viewer.records.Explain`.

    penalty: what a turn without a valid action costs, by the name of its world where a run has several. success_only:
    the worlds in which success alone pays. Turns count as the same state by the first credit's key.
    """

    def __init__(
        self,
        credits: Mapping[str, CreditSettings],
        penalty: float | Mapping[str, float] = 0.0,
        success_only: Container[str] = (),
    ):
        self.credits, self.penalty, self.success_only = dict(credits), penalty, success_only

    def __call__(self, episodes: Sequence[EpisodeRecord]) -> list[Explained]:
        first: Any = next(iter(self.credits.values()))
        turns = columns(episodes, getattr(first, "key", "observation"), self.penalty)
        turns = turns.paying_success([(one.world or "") in self.success_only for one in episodes])
        rows = {name: advantages(turns, credit).advantage_N for name, credit in self.credits.items()}
        value_N = value_proxy(turns, gamma=getattr(first, "gamma", 1.0))
        state_N = turns.states()
        explained, start = [], 0
        for one in episodes:
            place = slice(start, start + len(one.turns))
            own = {name: row[place].tolist() for name, row in rows.items()}
            explained.append(Explained(own, value_N[place].tolist(), state_N[place].tolist()))
            start += len(one.turns)
        return explained


def for_run(folder: Path) -> Recredit:
    """GAGPO, as the run sets it if it does, beside GRPO."""
    gagpo, penalty, success_only = Gagpo(), dict[str, float](), set[str]()
    try:
        settings = load(folder / "config.yaml")
    except SettingsError:
        pass  # a folder with episodes and no settings of ours is still worth looking at
    else:
        penalty = {world.name: world.invalid_penalty for world in settings.worlds}
        success_only = {world.name for world in settings.worlds if world.reward == "success"}
        if isinstance(settings.algorithm.credit, Gagpo):
            gagpo = settings.algorithm.credit
    return Recredit({"gagpo": gagpo, "grpo": Grpo()}, penalty, success_only)


def columns(episodes: Sequence[EpisodeRecord], key: str, penalty: float | Mapping[str, float]) -> Turns:
    """Saved episodes as the columns that credit is computed from; states fall back to observations."""
    turns = [turn for one in episodes for turn in one.turns]
    worlds = [one.world or "" for one in episodes for _ in one.turns]
    stateless = {world for world, turn in zip(worlds, turns, strict=True) if turn.state is None}
    by_state = {world: key in ("auto", "state") and world not in stateless for world in worlds}
    costs = penalty if isinstance(penalty, Mapping) else dict.fromkeys(worlds, penalty)
    return Turns(
        reward_N=np.array([turn.reward for turn in turns], np.float64),
        episode_N=np.repeat(np.arange(len(episodes)), [len(one.turns) for one in episodes]),
        group_E=intern((one.group, one.task) for one in episodes),
        state_N=intern(
            (world, turn.state if by_state[world] else turn.observation)
            for world, turn in zip(worlds, turns, strict=True)
        ),
        penalty_N=np.array(
            [0.0 if turn.valid else costs.get(world, 0.0) for world, turn in zip(worlds, turns, strict=True)]
        ),
        tokens_N=np.ones(len(turns), np.int64),
        truncated_E=np.array([one.outcome == "truncated" for one in episodes], np.bool_),
        success_E=np.array([one.won for one in episodes], np.bool_),
        world_E=intern(one.world for one in episodes) if len(set(worlds)) > 1 else None,
    )
