"""AGPO's adaptive sampling temperature and clip radius (arXiv 2605.20722)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import group_std

State = dict[str, Any]
"""State as plain JSON."""

NOTHING = 1e-8
"""A running average at or below it restarts."""

RADIUS = 0.2
"""Clip radius of a task without a probe."""


class Agpo(Options):
    """Each task's sampling temperature and clip radius, from probe episodes, entropy and KL (arXiv 2605.20722).

    The paper's terms of skewness are left out: their weights are 0 in the authors' code.

    probe: episodes per task of the probe. The dispersion is of their successes, 0 or 1.
    """

    probe: int = Field(default=8, ge=2)


class Statistics(NamedTuple):
    """Statistics of one task's probe. deviation: ``u_c``, relative deviation of its uncertainty from the average."""

    deviation: float
    dispersion: float
    votes: float


@dataclass
class AgpoState:
    """Running averages, None before their first value, and the statistics of the current iteration.

    by_task: of each probed task.
    entropy_share: entropy on each task of the batch, divided by the running average.
    tasks: the task of each group of the batch.
    """

    uncertainty: float | None = None
    entropy_reference: float | None = None
    kl: float = 0.0
    by_task: dict[str, Statistics] = field(default_factory=dict)
    entropy_share: dict[str, float] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)


class AgpoController:
    """Temperature and radius of each task, stored by the task's name."""

    def __init__(self) -> None:
        self.state = AgpoState()

    def begin(self) -> None:
        """Forget the last iteration's tasks; the running averages stay."""
        state = self.state
        state.by_task, state.entropy_share, state.tasks = {}, {}, []

    def observe_probe(self, turns: Turns, tasks_G: Sequence[str]) -> None:
        """Observe a probe: episodes sampled at the base temperature on tasks of the coming batch.

        Each task's uncertainty ``u`` is compared with the running average, which is then updated with the mean over the
        tasks. Without an average above 1e-8, ``u_c`` is 0. Votes are ``vote_E``, by default the successes.

        tasks_G: the task of each group, in increasing order of ``group_E``; groups of one task are merged.
        """
        state = self.state
        names = list(dict.fromkeys(tasks_G))
        group_E = np.array([names.index(task) for task in tasks_G])[turns.group_index_E]
        groups = len(names)
        reward_E = turns.coded_return_E("success")
        vote_E = reward_E if turns.vote_E is None else turns.vote_E
        dispersion_G = group_std(reward_E, group_E, groups)
        votes_G = vote_entropy(vote_E, group_E, groups)
        uncertainty_G = dispersion_G + votes_G
        usual = state.uncertainty
        if usual is None or usual <= NOTHING:
            deviation_G = np.zeros(groups)
        else:
            deviation_G = (uncertainty_G - usual) / (usual + 1e-8)
        state.uncertainty = running(usual, float(uncertainty_G.mean()), 0.1)
        columns = zip(deviation_G.tolist(), dispersion_G.tolist(), votes_G.tolist(), strict=True)
        state.by_task |= {task: Statistics(*numbers) for task, numbers in zip(names, columns, strict=True)}

    def observe_batch(self, tasks_G: Sequence[str], entropy_G: np.ndarray | None) -> None:
        """Observe the tasks of the batch's groups and the policy's entropy on each, nats.

        Each is compared with the running average, which is then updated with the mean over the groups.
        """
        entropy_G = np.asarray([] if entropy_G is None else entropy_G, np.float64)
        if entropy_G.shape != (len(tasks_G),) or not np.isfinite(entropy_G).all() or (entropy_G < 0).any():
            raise InvalidArgument(
                f"AGPO's clip radius needs the policy's mean token entropy on each of {len(tasks_G)} task groups, got "
                f"{entropy_G.tolist()}"
            )
        state, reference = self.state, self.state.entropy_reference
        if reference is None or reference <= NOTHING:
            share_G = np.ones(len(entropy_G))
        else:
            share_G = entropy_G / reference
        state.tasks = list(tasks_G)
        state.entropy_share = {
            task: float(share_G[[other == task for other in tasks_G]].mean()) for task in dict.fromkeys(tasks_G)
        }
        state.entropy_reference = running(reference, float(entropy_G.mean()), 0.01)

    def observe_update(self, old_kl: float) -> None:
        """Observe the mean of old less new log-probability after all updates of an iteration."""
        self.state.kl = 0.9 * self.state.kl + 0.1 * max(0.0, old_kl)

    def temperature(self, base: float, task: str) -> float:
        """``clamp(base (1 + .15 u_c), .5, 1.5)``; the base for a task without a probe."""
        found = self.state.by_task.get(task)
        return base if found is None else float(np.clip(base * (1.0 + 0.15 * found.deviation), 0.5, 1.5))

    def radius(self, task: str) -> float:
        """:func:`agpo_radius` of a task; the base radius for a task without a probe."""
        found = self.state.by_task.get(task)
        if found is None:
            return RADIUS
        return agpo_radius(found, self.state.entropy_share.get(task, 1.0), self.state.kl)

    def values(self) -> dict[str, float]:
        """Metrics, means over the probed tasks."""
        state, values = self.state, {"agpo_kl": self.state.kl}
        if found := list(state.by_task.values()):
            values |= {
                "agpo_radius": float(np.mean([self.radius(task) for task in state.by_task])),
                "agpo_temperature": float(np.mean([self.temperature(1.0, task) for task in state.by_task])),
                "agpo_dispersion": float(np.mean([one.dispersion for one in found])),
                "agpo_vote_entropy": float(np.mean([one.votes for one in found])),
            }
        if state.entropy_share:
            values["agpo_entropy_share"] = float(np.mean(list(state.entropy_share.values())))
        return values

    def state_dict(self) -> State:
        return asdict(self.state)

    def load_state_dict(self, state: State) -> None:
        by_task = {task: Statistics(*numbers) for task, numbers in state["by_task"].items()}
        self.state = AgpoState(**{**state, "by_task": by_task})


def vote_entropy(vote_E: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """Entropy of each group's votes, nats, float64[groups]."""
    vote_E = np.unique(vote_E, return_inverse=True)[1]
    kinds = int(vote_E.max()) + 1
    cell_C, votes_C = np.unique(group_E * kinds + vote_E, return_counts=True)
    cell_group_C = cell_C // kinds
    share_C = votes_C / np.bincount(group_E, minlength=groups)[cell_group_C]
    return np.bincount(cell_group_C, -share_C * np.log(share_C), groups) + 0.0


def agpo_radius(found: Statistics, entropy_share: float, kl: float) -> float:
    """AGPO's symmetric clip radius, with ``h = clamp(entropy_share, .5, 1.5)``:

    ``clamp(.2 h (1 + .1 VE)/(1 + sigma + .5 KL), .05, .4)``
    """
    damping = 1.0 + found.dispersion + 0.5 * kl
    radius = RADIUS * np.clip(entropy_share, 0.5, 1.5) * (1.0 + 0.1 * found.votes) / damping
    return float(np.clip(radius, 0.05, 0.4))


def running(average: float | None, value: float, rate: float) -> float:
    """Exponential moving average; the first value starts it, or restarts it from 1e-8 or less."""
    return value if average is None or average <= NOTHING else (1.0 - rate) * average + rate * value
