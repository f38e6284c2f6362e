"""Controllers: what adapts between updates, from rewards, probe episodes, entropy and divergence.

The trainer calls :class:`Controllers`, which holds all of a run. In each iteration:

1. ``begin()``.
2. If ``probe_episodes`` is above 0, ``observe_probe(turns, tasks)``. Then ``temperatures(base, tasks)`` before sampling
   and ``keep(turns)`` after it. Repeated with more tasks until the batch is full, at most ``sampling_rounds`` times.
3. ``shape(turns, limit)`` on the rewards, then ``observe_batch(turns, tasks, entropy)``; the entropy if ``measures``.
4. ``rate(highest, scheduled, zero_advantage_groups)`` for the learning rate, and ``controls(groups)`` for the loss.
5. After the optimiser steps ``bound_step(seen, measure, shorten)``, or ``skip()`` if no step was taken. If
   ``bounds_steps`` is true the trainer must keep the weights from before the steps.
6. If ``measures`` is true ``observe_update(approx_kl)``; finally ``values()`` for the metrics.

State of a task is stored by the task's name. Running averages over batches include all environments.
:class:`gagpo.controllers.average.AveragedWeights` averages the weights; unlike this package it imports torch.

Shape suffixes: N = turns, E = episodes, G = task groups, K = response tokens.
"""

from gagpo.controllers.agpo import Agpo, AgpoController, AgpoRadius, AgpoTemperature
from gagpo.controllers.apmpo import Apmpo, ApmpoController
from gagpo.controllers.lifecycle import Controllers, ControllerSettings
from gagpo.controllers.sampling import DynamicSampling, Overlong, VarianceFilter, overlong_penalty
from gagpo.controllers.trust_region import TrustRegion

__all__ = [
    "Agpo",
    "AgpoController",
    "AgpoRadius",
    "AgpoTemperature",
    "Apmpo",
    "ApmpoController",
    "ControllerSettings",
    "Controllers",
    "DynamicSampling",
    "Overlong",
    "TrustRegion",
    "VarianceFilter",
    "overlong_penalty",
]
