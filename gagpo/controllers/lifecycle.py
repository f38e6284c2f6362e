"""All controllers of a run, and when the trainer calls them; see :mod:`gagpo.controllers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

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
from gagpo.controllers.trust_region import TrustRegion
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


class Controller(Protocol):
    """What adapts between updates."""

    def values(self) -> dict[str, float]:
        """What to log of the iteration."""
        ...

    def state_dict(self) -> State:
        """What a checkpoint holds."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Take up a :meth:`state_dict`; ValueError where it is none."""
        ...


class Controllers:
    """All controllers of a run; without settings every method leaves things as they are.

    settings: those of the algorithm.
    trust_region: nats per token that an iteration may move the policy; None for no limit.
    by_groups: multiply the learning rate by the root of the share of task groups that teach anything.
    """

    def __init__(
        self,
        settings: ControllerSettings | None = None,
        trust_region: float | None = None,
        by_groups: bool = False,
    ):
        self.settings = settings or ControllerSettings()
        self.by_groups = by_groups
        self.apmpo = ApmpoController(self.settings.apmpo) if self.settings.apmpo else None
        self.agpo = AgpoController(self.settings.agpo) if self.settings.agpo else None
        self.trust_region = TrustRegion(trust_region) if trust_region else None
        known = {"apmpo": self.apmpo, "agpo": self.agpo, "trust_region": self.trust_region}
        self._parts: dict[str, Controller] = {name: part for name, part in known.items() if part is not None}

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

    @property
    def bounds_steps(self) -> bool:
        """Whether a step may be shortened, which needs the weights before it."""
        return self.trust_region is not None

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
        """The turns with rewards shaped; limit_N: most response tokens of each, where environments differ in it."""
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

    def rate(self, highest: float, scheduled: float, zero_groups: float) -> float:
        """The learning rate of the coming steps.

        highest: of the parameter group. scheduled: the schedule's factor. zero_groups: share of the task groups that
        teach nothing.

        Adam divides a gradient by its usual size, so the noise of one group in ten moves the weights as far as that of
        ten. A gradient's noise falls with the root of the share of groups that it comes from. Multiplied by that root,
        a step is as long as in a batch where every group teaches.
        """
        share = math.sqrt(1.0 - zero_groups) if self.by_groups else 1.0
        return highest * (scheduled * share) * (self.trust_region.scale if self.trust_region else 1.0)

    def bound_step(self, seen: float | None, measure: Callable[[], float], shorten: Callable[[float], None]) -> None:
        """The updates are made: keep what the trust region allows; see :meth:`TrustRegion.bound`."""
        if self.trust_region:
            self.trust_region.bound(seen, measure, shorten)

    def skip(self) -> None:
        """The batch led to no step: there is nothing to bound, and no rate to adapt."""
        if self.trust_region:
            self.trust_region.forget()

    def values(self) -> dict[str, float]:
        """What to log: means over task groups where those have their own."""
        return {name: value for part in self._parts.values() for name, value in part.values().items()}

    def state_dict(self) -> State:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: State) -> None:
        """Take up the state of :meth:`state_dict`; ValueError when it is that of other controllers."""
        if self._parts.keys() != state.keys():
            raise InvalidArgument(f"the state is of controllers {sorted(state)}, the run has {sorted(self._parts)}")
        for name, part in self._parts.items():
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
