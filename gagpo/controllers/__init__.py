"""Controllers: what adapts between updates, from rewards, probe rollouts, entropy and divergence.

Each controller has ``values()``, what to log, and ``state_dict()`` and ``load_state_dict(state)``, what a checkpoint
holds. The trainer only talks to :class:`Controllers`, which has all of a run. In every iteration it calls:

1. ``begin()``.
2. Where ``probe_episodes`` is above 0, ``observe_probe(turns, tasks)``. Then ``temperatures(base, tasks)`` before
   sampling and ``keep(turns)`` on what was sampled. Repeated with further tasks until the batch is full or
   ``sampling_rounds`` are done.
3. ``shape(turns)`` on the rewards and ``observe_batch(turns, tasks, entropy)``, which needs the policy's entropy where
   ``measures`` is true.
4. ``rate(highest, scheduled, zero_groups)``, the learning rate, and ``controls(groups)``, what the loss uses.
5. After the optimiser steps ``bound_step(seen, measure, shorten)``, or ``skip()`` where no step was made. Weights to
   go back to are needed where ``bounds_steps`` is true.
6. Where ``measures`` is true ``observe_update(old_kl)``; finally ``values()``.

:class:`gagpo.controllers.average.AveragedWeights` is a controller of the weights themselves: ``update(iteration)``
after step 6 and ``applied()`` to measure the average. It imports torch, which nothing imported here does.

What belongs to a task is kept by the task's name, which in a run of several environments begins with the environment's.
Running averages over the batch are of all environments together.

Shape suffixes: N = turns, E = episodes, G = task groups, K = response tokens.
"""

from gagpo.controllers.agpo import Agpo, AgpoController
from gagpo.controllers.apmpo import Apmpo, ApmpoController
from gagpo.controllers.curriculum import Curriculum
from gagpo.controllers.lifecycle import Controller, Controllers, ControllerSettings
from gagpo.controllers.sampling import DynamicSampling, Overlong, VarianceFilter, overlong_penalty
from gagpo.controllers.trust_region import TrustRegion

__all__ = [
    "Agpo",
    "AgpoController",
    "Apmpo",
    "ApmpoController",
    "Controller",
    "ControllerSettings",
    "Controllers",
    "Curriculum",
    "DynamicSampling",
    "Overlong",
    "TrustRegion",
    "VarianceFilter",
    "overlong_penalty",
]
