"""The environments of the studies, and the policy that every method starts from in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.studies.policy import SmallAgent, SmallPolicy, read_states
from gagpo.agents.agent import EpisodeState
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.data import Episode, Turn
from gagpo.envs.pool import Pool, WorkerPool

DEMONSTRATIONS, SLIPS = 64, 0.3
"""Expert episodes that a start imitates, and the share of their actions that are drawn at random."""


@dataclass(frozen=True)
class StudyEnv:
    """An environment and what a run in it looks like.

    panel: the split that nothing is chosen on. turns: environment turns of a run. rooms: games that are trained on;
    with ``fresh`` none is met twice in a run.
    """

    env_id: str
    kwargs: dict[str, Any]
    panel: str
    turns: int

    def pool(self, split: str = "train", **more: Any) -> Pool:
        return WorkerPool(self.env_id, {**self.kwargs, "split": split, **more}, workers=0)

    def tasks(self, split: str) -> Sequence[str]:
        return tasks_of(make_env(self.env_id, self.kwargs), split).ids


def _alfworld(size: str, max_turns: int, games: int, seed: int) -> dict[str, Any]:
    counts = {"train": games, "valid_seen": 48, "valid_unseen": 48}
    return {"size": size, "max_turns": max_turns, "counts": counts, "seed": seed}


ENVIRONMENTS_TRIED = {
    "small": StudyEnv("gagpo/ALFWorld-v0", _alfworld("small", 20, 48, 11), "valid_unseen", 16_000),
    "fresh": StudyEnv("gagpo/ALFWorld-v0", _alfworld("small", 20, 600, 12), "valid_unseen", 16_000),
    "full": StudyEnv("gagpo/ALFWorld-v0", _alfworld("full", 40, 300, 13), "valid_unseen", 48_000),
    "shop": StudyEnv("gagpo/WebShop-v0", {"max_turns": 15, "products": 1_000}, "test", 10_000),
}
"""``small``: 48 small rooms, met again and again; ``fresh``: 600, none met twice; ``full``: rooms of 20-48 receptacles
and 40 turns; ``shop``: 1,000 products."""


class ScriptedAgent:
    """The expert, who slips with a probability, in the small policy's reading; slips are not imitated."""

    def __init__(self, slips: float = SLIPS):
        self.slips = slips

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._show(*one) for one in zip(states, read_states(states), strict=True)]

    def _show(self, state: EpisodeState, read: np.ndarray) -> Turn | None:
        actions, wanted = state.info["admissible_actions"], state.info.get("expert_action")
        if wanted is None:
            return None
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns)])
        slips = wanted not in actions or rng.random() < self.slips
        action = actions[int(rng.integers(len(actions)))] if slips else wanted
        response_ids = np.array([actions.index(action)], np.int32)
        return Turn("", action, action, trainable=not slips, prompt_ids=read, response_ids=response_ids)

    def forget(self, slot: int) -> None:
        pass


def start(name: str, success: float, folder: Path, env: StudyEnv | None = None) -> SmallPolicy:
    """A policy that succeeds at about ``success`` of the training tasks; made once, and kept in ``folder``.

    env: the environment of this name; by default the one of ``ENVIRONMENTS_TRIED``.

    It imitates a few demonstrations, and its weights are then scaled, which makes it more or less decided.
    """
    file = folder / f"{name}-{round(100 * success)}.pt"
    policy = SmallPolicy()
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        env = env or ENVIRONMENTS_TRIED[name]
        _imitate(policy, env)
        _scale(policy, env, success)
        torch.save(policy.state_dict(), file)
    policy.load_state_dict(torch.load(file, weights_only=True))
    return policy


def _imitate(policy: SmallPolicy, env: StudyEnv) -> None:
    with env.pool(expert=True) as pool:
        episodes, _ = rollout(ScriptedAgent(), pool, group_jobs(env.tasks("train")[:DEMONSTRATIONS], 1, 0, "start"))
    turns = [turn for episode in episodes for turn in episode.turns if turn.trainable]
    optimizer = torch.optim.Adam([policy.weight], 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        (-policy.logprobs(turns)[0].mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _scale(policy: SmallPolicy, env: StudyEnv, success: float) -> None:
    """Find the factor of the weights at which the policy succeeds as often as wanted, by bisection."""
    whole = policy.weight.detach().clone()
    low, high = 0.0, 2.0
    for step in range(7):
        # More decided where it fails too often; the same tasks and draws at every step.
        factor = (low + high) / 2
        policy.weight.data = factor * whole
        rate = success_rate(play(policy, env, "train", 32, 4, f"scale {step}"))
        low, high = (factor, high) if rate < success else (low, factor)


def play(
    policy: SmallPolicy, env: StudyEnv, split: str, tasks: int, tries: int, label: str, seed: int = 0
) -> list[Episode]:
    """Episodes of the first ``tasks`` tasks of a split."""
    with env.pool(split) as pool:
        return rollout(SmallAgent(policy), pool, group_jobs(env.tasks(split)[:tasks], tries, seed, label))[0]


def success_rate(episodes: Sequence[Episode]) -> float:
    return sum(episode.success for episode in episodes) / max(len(episodes), 1)


def altered(env: StudyEnv, **kwargs: Any) -> StudyEnv:
    """The environment with other arguments, such as another horizon."""
    return replace(env, kwargs={**env.kwargs, **kwargs})
