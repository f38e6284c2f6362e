"""All controllers of one algorithm, and when the trainer calls them.

In an iteration the trainer calls

1. :meth:`~Controllers.begin`;
2. :meth:`~Controllers.observe_probe` on ``probe_episodes`` per task (if any), then :meth:`~Controllers.temperatures`,
   :meth:`~Controllers.keep` on what was sampled, and again for further tasks until the batch is full or
   ``sampling_rounds`` are up;
3. :meth:`~Controllers.shape` and :meth:`~Controllers.observe_batch`, then :meth:`~Controllers.controls` for the loss;
4. :meth:`~Controllers.observe_update` after all updates, :meth:`~Controllers.values` for the log.

What belongs to a task is kept by the task's name, which in a run of several worlds begins with the world's. Running
averages over the batch are of all worlds together.

Shape suffixes: N = turns, E = episodes, G = task groups, K = response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.controllers.agpo import Agpo, AgpoController, State
from gagpo.controllers.apmpo import Apmpo, ApmpoController
from gagpo.controllers.sampling import (
    DynamicSampling,
    Overlong,
    VarianceFilter,
    keep_episodes,
    keep_varied,
    shape_overlong,
)
from gagpo.credit.turns import Turns

if TYPE_CHECKING:
    from torch import Tensor

    from gagpo.objectives.gates import Controls


class ControllerSettings(Options):
    """The controllers an algorithm has; None where it has not."""

    apmpo: Apmpo | None = None
    agpo: Agpo | None = None
    dynamic_sampling: DynamicSampling | None = None
    variance_filter: VarianceFilter | None = None
    overlong: Overlong | None = None


class Controllers:
    """All controllers of one algorithm; without settings every method leaves things as they are."""

    def __init__(self, settings: ControllerSettings | None = None):
        self.settings = settings or ControllerSettings()
        self.apmpo = ApmpoController(self.settings.apmpo) if self.settings.apmpo else None
        self.agpo = AgpoController(self.settings.agpo) if self.settings.agpo else None

    @property
    def probe_episodes(self) -> int:
        """Episodes per task that a probe has; 0 where no probe is wanted."""
        return self.settings.agpo.probe if self.settings.agpo else 0

    @property
    def sampling_rounds(self) -> int:
        """How often to sample at most until the batch is full."""
        return self.settings.dynamic_sampling.rounds if self.settings.dynamic_sampling else 1

    @property
    def measures(self) -> bool:
        """Whether the policy's entropy before the updates and its distance after them are wanted."""
        return self.agpo is not None

    def begin(self) -> None:
        """An iteration begins."""
        if self.agpo:
            self.agpo.begin()

    def observe_probe(self, turns: Turns, tasks_G: Sequence[str] | None = None) -> None:
        """Take a probe; see :meth:`AgpoController.observe_probe`."""
        if self.agpo:
            self.agpo.observe_probe(turns, _named(tasks_G, turns))

    def temperatures(self, base: float, tasks: Sequence[str]) -> list[float]:
        """Sampling temperature of each task; the base where there was no probe of it."""
        return [self.agpo.temperature(base, task) if self.agpo else base for task in tasks]

    def keep(self, turns: Turns) -> np.ndarray:
        """Which episodes to train on, bool[E]; with dynamic sampling the others' groups are sampled anew."""
        kept_E = keep_episodes(turns, self.settings.dynamic_sampling)
        return np.asarray(kept_E & keep_varied(turns, self.settings.variance_filter))

    def shape(self, turns: Turns, limit_N: np.ndarray | None = None) -> Turns:
        """The turns with rewards shaped; limit_N: most response tokens of each, where worlds differ in it."""
        return shape_overlong(turns, self.settings.overlong, limit_N)

    def observe_batch(
        self, turns: Turns, tasks_G: Sequence[str] | None = None, entropy: np.ndarray | float | None = None
    ) -> None:
        """Take the batch that the coming updates are made on.

        tasks_G: the task of each group, in increasing order of ``group_E``. entropy: of the policy before the updates,
        exact, at temperature 1 (a hotter sampler is not a less certain policy), nats: the mean over each group's
        response tokens, or one number for all. Both are wanted where ``measures`` is true.
        """
        if self.apmpo:
            self.apmpo.observe_batch(turns)
        if self.agpo:
            entropy_G = None if entropy is None else np.broadcast_to(entropy, turns.groups)
            self.agpo.observe_batch(_named(tasks_G, turns), entropy_G)

    def controls(self, group_K: Tensor | None = None) -> Controls:
        """What the loss is to use now. group_K: task group (0..G-1) of each token; needed where groups have their own.

        Raises ValueError when groups have their own and ``group_K`` is missing.
        """
        from gagpo.objectives.gates import Controls  # imports torch, which reading settings must not

        low = high = exponent = None
        if self.apmpo:
            exponent = self.apmpo.exponent_G
            high = self.apmpo.radius_G
            low = high if self.apmpo.settings.symmetric else None
        if self.agpo:
            low = high = [self.agpo.radius(task) for task in self.agpo.state.tasks] or None
        return Controls(*(_on_tokens(values, group_K) for values in (low, high, exponent)))

    def observe_update(self, old_kl: float) -> None:
        """Take the mean of old less new log-probability, over the batch's tokens and measured after all updates."""
        if self.agpo:
            self.agpo.observe_update(old_kl)

    def values(self) -> dict[str, float]:
        """What to log: means over task groups where those have their own."""
        values: dict[str, float] = {}
        if self.apmpo and self.apmpo.exponent_G:
            values["apmpo_exponent"] = float(np.mean(self.apmpo.exponent_G))
        if self.apmpo and self.apmpo.radius_G:
            values["apmpo_radius"] = float(np.mean(self.apmpo.radius_G))
        if self.agpo:
            state, tasks = self.agpo.state, list(self.agpo.state.by_task)
            values["agpo_kl"] = state.kl
            if tasks:
                found = list(state.by_task.values())
                values |= {
                    "agpo_radius": float(np.mean([self.agpo.radius(task) for task in tasks])),
                    "agpo_temperature": float(np.mean([self.agpo.temperature(1.0, task) for task in tasks])),
                    "agpo_dispersion": float(np.mean([one.dispersion for one in found])),
                    "agpo_skewness": float(np.mean([one.skewness for one in found])),
                    "agpo_vote_entropy": float(np.mean([one.votes for one in found])),
                }
            if state.entropy_share:
                values["agpo_entropy_share"] = float(np.mean(list(state.entropy_share.values())))
        return values

    def state_dict(self) -> State:
        parts = {"apmpo": self.apmpo, "agpo": self.agpo}
        return {name: part.state_dict() for name, part in parts.items() if part}

    def load_state_dict(self, state: State) -> None:
        """Take up the state of :meth:`state_dict`; ValueError when it is that of other controllers."""
        parts = {name: part for name, part in (("apmpo", self.apmpo), ("agpo", self.agpo)) if part}
        if parts.keys() != state.keys():
            raise InvalidArgument(f"the state is of controllers {sorted(state)}, the algorithm has {sorted(parts)}")
        for name, part in parts.items():
            part.load_state_dict(state[name])


def _named(tasks_G: Sequence[str] | None, turns: Turns) -> Sequence[str]:
    """The tasks of the groups; their places where no tasks are given."""
    if tasks_G is not None and len(tasks_G) != turns.groups:
        raise InvalidArgument(f"there are {turns.groups} task groups and {len(tasks_G)} tasks: name the task of each")
    return [str(group) for group in range(turns.groups)] if tasks_G is None else tasks_G


def _on_tokens(value_G: list[float] | None, group_K: Tensor | None) -> float | Tensor | None:
    if value_G is None:
        return None
    if len(value_G) == 1:
        return value_G[0]
    if group_K is None:
        raise InvalidArgument(
            "each task group has its own clip radius or exponent: give group_K, the group of each token"
        )
    import torch

    return torch.tensor(value_G, dtype=torch.float32, device=group_K.device)[group_K]
