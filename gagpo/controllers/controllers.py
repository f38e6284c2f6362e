"""All controllers of one algorithm, and when the trainer calls them.

One :class:`Controllers` holds those an algorithm has. In an iteration the trainer calls

1. :meth:`~Controllers.observe_probe` on ``probe_episodes`` per task (if any), then :meth:`~Controllers.temperature_G`;
2. :meth:`~Controllers.keep` on what was sampled, and samples on until the batch is full or ``sampling_rounds`` are up;
3. :meth:`~Controllers.shape` and :meth:`~Controllers.observe_batch`, then :meth:`~Controllers.controls` for the loss;
4. :meth:`~Controllers.observe_update` after each update, :meth:`~Controllers.values` for the log.

Shape suffixes: N = turns, E = episodes, G = task groups, K = response tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gagpo.cells import Cell
from gagpo.controllers.agpo import Agpo, AgpoController
from gagpo.controllers.apmpo import Apmpo, ApmpoController
from gagpo.controllers.sampling import DynamicSampling, Overlong, keep_episodes, shape_overlong
from gagpo.credit.turns import Turns
from gagpo.envs.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor

    from gagpo.objectives.gates import Controls


class ControllerSettings(Cell):
    """The controllers an algorithm has; None where it has not."""

    apmpo: Apmpo | None = None
    agpo: Agpo | None = None
    dynamic_sampling: DynamicSampling | None = None
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

    def observe_probe(self, turns: Turns) -> None:
        """Take a probe; see :meth:`AgpoController.observe_probe`."""
        if self.agpo:
            self.agpo.observe_probe(turns)

    def temperature_G(self, base: float, groups: int) -> np.ndarray:
        """Sampling temperature of each task group, float64[groups], in the order of the last probe's groups."""
        if self.agpo is None:
            return np.full(groups, base)
        return _per_group(self.agpo.temperature_G(base), groups)

    def keep(self, turns: Turns) -> np.ndarray:
        """Which episodes to train on, bool[E]; the others' groups are to be sampled anew."""
        return keep_episodes(turns, self.settings.dynamic_sampling)

    def shape(self, turns: Turns) -> Turns:
        """The turns with rewards shaped."""
        return shape_overlong(turns, self.settings.overlong)

    def observe_batch(self, turns: Turns, entropy: float | None = None) -> None:
        """Take the batch that the coming updates are made on.

        entropy: mean entropy of the sampling policy over the batch's response tokens, nats; AGPO needs it.
        """
        if self.apmpo:
            self.apmpo.observe_batch(turns)
        if self.agpo:
            self.agpo.observe_entropy(entropy)

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
            low = high = self.agpo.radius_G().tolist()
        return Controls(*(_on_tokens(values, group_K) for values in (low, high, exponent)))

    def observe_update(self, old_kl: float) -> None:
        """Take the mean of old less new log-probability of an update (``old_kl`` of the loss's summary)."""
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
            state = self.agpo.state
            values |= {
                "agpo_radius": float(self.agpo.radius_G().mean()),
                "agpo_temperature": float(self.agpo.temperature_G(1.0).mean()),
                "agpo_dispersion": float(np.mean(state.dispersion_G)),
                "agpo_skewness": float(np.mean(state.skewness_G)),
                "agpo_vote_entropy": float(np.mean(state.votes_G)),
                "agpo_entropy_share": state.entropy_share,
                "agpo_kl": state.kl,
            }
        return values

    def state_dict(self) -> dict[str, Any]:
        """Numbers and lists that JSON can hold."""
        parts = {"apmpo": self.apmpo, "agpo": self.agpo}
        return {name: part.state_dict() for name, part in parts.items() if part}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of :meth:`state_dict`; ValueError when it is that of other controllers."""
        parts = {name: part for name, part in (("apmpo", self.apmpo), ("agpo", self.agpo)) if part}
        if parts.keys() != state.keys():
            raise InvalidArgument(f"the state is of controllers {sorted(state)}, the algorithm has {sorted(parts)}")
        for name, part in parts.items():
            part.load_state_dict(state[name])


def _per_group(value_G: np.ndarray, groups: int) -> np.ndarray:
    if len(value_G) not in (1, groups):
        raise InvalidArgument(f"the last probe had {len(value_G)} task groups, the batch has {groups}")
    return np.broadcast_to(value_G, groups).copy()


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
