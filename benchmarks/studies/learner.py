"""Training of the small policy by the suite's own credit and objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.studies.environments import StudyEnv, success_rate
from benchmarks.studies.policy import SmallAgent, SmallPolicy
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.algorithms import Algorithm, load
from gagpo.credit import advantages, turns_for
from gagpo.data import Episode
from gagpo.objectives import Layout, policy_loss, value_loss

TASKS, SAMPLES, MINIBATCHES = 8, 8, 4
CRITIC_RATE = 0.02

METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "ppo": {"name": "ppo_turn"},
    "gigpo": {"name": "gigpo", "state_key": "observation"},
    "gigpo-state": {"name": "gigpo", "state_key": "state"},
    "hgpo": {"name": "hgpo", "state_key": "observation"},
    "gagpo": {"name": "gagpo", "state_key": "observation"},
    "gagpo-state": {"name": "gagpo", "state_key": "state"},
    "graphgpo": {"name": "graphgpo", "state_key": "observation"},
    "graphgpo-state": {"name": "graphgpo", "state_key": "state"},
    "milegpo-state": {"name": "milegpo", "state_key": "state"},
    "graph": {"name": "gagpo", "state_key": "state", "proxy": "graph", "lam": 0.0},
    "graph_sum": {"name": "weighted_sum", "state_key": "state"},
    "graph_episode": {"name": "gagpo", "state_key": "state", "proxy": "graph", "lam": 0.0, "episode_weight": 1.0},
    "graph_macro": {"name": "gagpo", "state_key": "state", "proxy": "graph", "lam": 0.0, "macro_actions": True},
    "gagpo_macro": {"name": "gagpo", "state_key": "state", "macro_actions": True},
}
"""The credits that are compared. Everything else is the same for all: one ratio per action, clip .2, mean over actions,
no KL."""


def algorithm_of(method: str) -> Algorithm:
    """GAGPO's objective with the method's credit."""
    credit = METHODS[method]
    critic = {"critic": {"clip": None}} if credit["name"].startswith("ppo") else {}
    return load("gagpo", {"credit": credit, "kl": {"coefficient": 0.0}, **critic})


@dataclass
class Progress:
    """One iteration: turns played so far, success rate, what credit said of its batch."""

    turns: int
    success: float
    stats: dict[str, float]


def train(
    policy: SmallPolicy,
    env: StudyEnv,
    method: str,
    rate: float,
    seed: int,
    degrade: Callable[[Sequence[Episode]], Sequence[Episode]] = lambda episodes: episodes,
) -> Iterator[Progress]:
    """Train ``policy`` until ``environment.turns`` turns have been played; yields after every iteration.

    degrade: what the credit sees of the episodes, such as noisy rewards; progress is measured on the true ones.
    """
    algorithm = algorithm_of(method)
    optimizer = torch.optim.Adam(
        [{"params": [policy.weight], "lr": rate}, {"params": [policy.value_weight], "lr": CRITIC_RATE}]
    )
    order, rng = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 8])
    names: list[str] = []
    played = iteration = 0
    with env.pool() as pool:
        tasks = env.tasks("train")
        while played < env.turns:
            # Play groups of fresh tasks until all have been met, then all again; learn from them at once.
            if len(names) < TASKS:
                names += [tasks[place] for place in order.permutation(len(tasks))]
            label = f"iteration {iteration}"
            jobs = group_jobs([names.pop(0) for _ in range(TASKS)], SAMPLES, seed, label)
            episodes, _ = rollout(SmallAgent(policy), pool, jobs)
            iteration += 1
            played += sum(len(episode.turns) for episode in episodes)
            stats = learn(policy, optimizer, degrade(episodes), algorithm, rng)
            yield Progress(played, success_rate(episodes), stats)


def learn(
    policy: SmallPolicy,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[Episode],
    algorithm: Algorithm,
    rng: np.random.Generator,
) -> dict[str, float]:
    """One epoch of mini-batches over the turns of ``episodes``; the statistics of their credit."""
    columns = turns_for(episodes, algorithm.credit)
    turns = [turn for episode in episodes for turn in episode.turns]
    with torch.no_grad():
        value_N = policy.values(turns).numpy().astype(np.float64) if algorithm.critic else None
    credit = advantages(columns, algorithm.credit, value_N)
    old_N = torch.as_tensor(np.concatenate([turn.logprobs for turn in turns]))
    advantage_N = torch.as_tensor(credit.advantage_N, dtype=torch.float32)
    for part in np.array_split(rng.permutation(len(turns)), MINIBATCHES):
        # A turn is an action of one token.
        chosen = [turns[place] for place in part]
        logprob_M, _ = policy.logprobs(chosen)
        loss, _ = policy_loss(logprob_M, old_N[part], advantage_N[part], Layout.of(torch.arange(len(part))), algorithm)
        if value_N is not None and credit.target is not None:
            old_M, target_M = (torch.as_tensor(x[part], dtype=torch.float32) for x in (value_N, credit.target))
            loss = loss + value_loss(policy.values(chosen), old_M, target_M, clip=None)[0]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return credit.stats
