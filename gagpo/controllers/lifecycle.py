"""All controllers of a run; :mod:`gagpo.controllers` lists when the trainer calls them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from gagpo.controllers.trust_region import TrustRegion
from gagpo.data import Turns

if TYPE_CHECKING:
    from torch import Tensor

    from gagpo.objectives.gates import Controls


class ControllerSettings(Options):
    """The controllers of an algorithm; None for those that it does not use."""

    apmpo: Apmpo | None = None
    agpo: Agpo | None = None
    dynamic_sampling: DynamicSampling | None = None
    variance_filter: VarianceFilter | None = None
    overlong: Overlong | None = None


class Controllers:
    """All controllers of a run; without settings, no method changes anything.

    trust_region: KL target of an iteration, nats per token; None for no limit.
    scale_by_groups: multiply the learning rate by the square root of the fraction of task groups with a signal.
    """

    def __init__(
        self,
        settings: ControllerSettings | None = None,
        trust_region: float | None = None,
        scale_by_groups: bool = False,
    ):
        self.settings = settings or ControllerSettings()
        self.scale_by_groups = scale_by_groups
        self.apmpo = ApmpoController(self.settings.apmpo) if self.settings.apmpo else None
        self.agpo = AgpoController(self.settings.agpo) if self.settings.agpo else None
        self.trust_region = TrustRegion(trust_region) if trust_region else None
        controllers = {"apmpo": self.apmpo, "agpo": self.agpo, "trust_region": self.trust_region}
        self._parts = {name: controller for name, controller in controllers.items() if controller is not None}

    @property
    def probe_episodes(self) -> int:
        """Episodes per task of a probe; 0 for no probe."""
        return self.settings.agpo.probe if self.settings.agpo else 0

    @property
    def sampling_rounds(self) -> int:
        """Most rounds of sampling for one batch."""
        return self.settings.dynamic_sampling.rounds if self.settings.dynamic_sampling else 1

    @property
    def measures(self) -> bool:
        """Whether to measure the policy's entropy before the updates and its divergence after them."""
        return self.settings.agpo is not None and self.settings.agpo.radius is not None

    @property
    def bounds_steps(self) -> bool:
        """Whether a step may be shortened, which requires the weights before it."""
        return self.trust_region is not None

    def begin(self) -> None:
        """Begin an iteration."""
        if self.agpo:
            self.agpo.begin()

    def observe_probe(self, turns: Turns, tasks_G: Sequence[str]) -> None:
        """See :meth:`AgpoController.observe_probe`."""
        if self.agpo:
            self.agpo.observe_probe(turns, tasks_G)

    def temperatures(self, base: float, tasks: Sequence[str]) -> list[float]:
        """Sampling temperature of each task; the base for tasks without a probe."""
        return [self.agpo.temperature(base, task) if self.agpo else base for task in tasks]

    def keep(self, turns: Turns) -> np.ndarray:
        """Which episodes to train on, bool[E]; dynamic sampling replaces the other groups."""
        mask_E = keep_episodes(turns, self.settings.dynamic_sampling)
        return np.asarray(mask_E & keep_varied(turns, self.settings.variance_filter))

    def shape(self, turns: Turns, limit: np.ndarray | int) -> Turns:
        """Shape the rewards. limit: most tokens of a response, for all turns or one for each."""
        return shape_overlong(turns, self.settings.overlong, limit)

    def observe_batch(
        self, turns: Turns, tasks_G: Sequence[str] = (), entropy: np.ndarray | float | None = None
    ) -> None:
        """Observe the batch of the coming updates. If ``measures`` is true, all arguments are required.

        tasks_G: the task of each group, in increasing order of ``group_E``.
        entropy: exact entropy of the policy before the updates at temperature 1, nats: the mean over each group's
            response tokens, or one number for all groups.
        """
        if self.apmpo:
            self.apmpo.observe_batch(turns)
        if self.agpo:
            entropy_G = None if entropy is None else np.broadcast_to(entropy, turns.num_groups)
            self.agpo.observe_batch(tasks_G, entropy_G)

    def controls(self, group_K: Tensor | None = None) -> Controls:
        """Clip radii and exponent for the loss. group_K: task group (0..G-1) of each token, where they differ."""
        from gagpo.objectives.gates import Controls  # imports torch, which reading settings must not

        exponent = low = high = None
        if self.apmpo:
            exponent = _on_tokens(self.apmpo.exponents, group_K)
            high = _on_tokens(self.apmpo.radii, group_K)
            low = high if self.apmpo.settings.symmetric else None
        if self.agpo and self.agpo.settings.radius and self.agpo.state.tasks:
            low = high = _on_tokens([self.agpo.radius(task) for task in self.agpo.state.tasks], group_K)
        return Controls(low, high, exponent)

    def observe_update(self, approx_kl: float) -> None:
        """Observe the batch's mean of old less new log-probability, measured after all updates."""
        if self.agpo:
            self.agpo.observe_update(approx_kl)

    def rate(self, highest: float, scheduled: float, zero_advantage_groups: float) -> float:
        """The learning rate of the coming steps.

        Adam normalises gradients, so a batch in which one group of ten has a signal moves the weights as far as a full
        one, with more noise. ``scale_by_groups`` compensates with the square root of that fraction.

        highest: rate of the parameter group.
        scheduled: the schedule's factor.
        zero_advantage_groups: fraction of task groups without a signal.
        """
        group_factor = math.sqrt(1.0 - zero_advantage_groups) if self.scale_by_groups else 1.0
        region_factor = self.trust_region.scale if self.trust_region else 1.0
        return highest * (scheduled * group_factor) * region_factor

    def bound_step(self, last_kl: float | None, measure: Callable[[], float], shorten: Callable[[float], None]) -> None:
        """Shorten the step as far as the trust region requires; see :meth:`TrustRegion.bound`."""
        if self.trust_region:
            self.trust_region.bound(last_kl, measure, shorten)

    def skip(self) -> None:
        """Note that the batch led to no step."""
        if self.trust_region:
            self.trust_region.forget()

    def values(self) -> dict[str, float]:
        """Metrics, means over task groups."""
        return {name: value for controller in self._parts.values() for name, value in controller.values().items()}

    def state_dict(self) -> State:
        return {name: controller.state_dict() for name, controller in self._parts.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore a :meth:`state_dict`; InvalidArgument for that of other controllers."""
        if self._parts.keys() != state.keys():
            raise InvalidArgument(f"the state is of controllers {sorted(state)}, the run has {sorted(self._parts)}")
        for name, controller in self._parts.items():
            controller.load_state_dict(state[name])


def _on_tokens(value_G: list[float] | None, group_K: Tensor | None) -> float | Tensor | None:
    """The value of each token's group; a number if there is only one, None if the setting's own applies."""
    if value_G is None:
        return None
    if len(value_G) == 1:
        return value_G[0]
    if group_K is None:
        raise InvalidArgument(
            "task groups have different radii or exponents",
            key="group_K",
            advice="give group_K, the group of each token",
        )
    import torch

    return torch.tensor(value_G, dtype=torch.float32, device=group_K.device)[group_K]
