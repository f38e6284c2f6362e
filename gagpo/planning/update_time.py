"""The time of an iteration from stated rates, and what bounds it.

Each part is bytes or operations divided by a rate (:mod:`gagpo.planning.rates`). Collective calls of FSDP overlap with
arithmetic, so an update takes the longer of the two. Environments are left out: they run while the engine samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from gagpo.model.shape import Shape
from gagpo.planning.memory import most_sessions
from gagpo.planning.rates import FILES, Rates
from gagpo.planning.traffic import Passes, Traffic
from gagpo.settings import RunSettings

LOAD = 20e9  # bytes per second from a file in memory to a GPU


@dataclass(frozen=True)
class Workload:
    """Tokens of an iteration.

    sampled: of all responses.
    trained: read in training in one epoch, by all ranks.
    row: of a typical row.
    """

    sampled: float
    trained: float
    row: float


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an iteration by part, and the resource that each part waits for.

    decoding: the GPU's memory, from which every step reads weights and cache.
    prompts: arithmetic of reading prompts.
    arithmetic: of forward and backward passes.
    links, network: collective calls, within a machine and between machines.
    weights: to the engine, through links, network and files.
    episodes: exchanged between ranks.
    """

    decoding: float
    prompts: float
    arithmetic: float
    links: float
    network: float
    weights: float
    episodes: float

    @property
    def update(self) -> float:
        return max(self.arithmetic, self.links, self.network)

    @property
    def total(self) -> float:
        return self.decoding + self.prompts + self.update + self.weights + self.episodes

    def bottleneck(self) -> str:
        """What takes most of the time, in words."""
        shares = {
            "decoding (GPU memory bandwidth)": self.decoding,
            "reading prompts (arithmetic)": self.prompts,
            "forward and backward passes (arithmetic)": self.arithmetic if self.update == self.arithmetic else 0.0,
            "collective calls within a machine": self.links if self.update == self.links else 0.0,
            "collective calls between machines (network)": self.network if self.update == self.network else 0.0,
            "weights to the engine": self.weights,
            "the exchange of episodes": self.episodes,
        }
        return max(shares, key=lambda name: shares[name])


def time_of(
    settings: RunSettings,
    shape: Shape,
    rates: Rates,
    work: Workload,
    passes: Passes,
    traffic: Traffic,
) -> UpdateTime:
    """The time of an iteration."""
    cluster = traffic.cluster
    ranks = cluster.ranks
    tokens = work.trained / ranks
    query = shape.heads * shape.head_size
    # A multiply-add is two operations. Each response token attends to half of its row on average.
    forward = 2.0 * shape.parameters + 2.0 * work.row * query * shape.layers
    training = settings.training
    backward = forward * (2.0 + training.gradient_checkpointing)  # recomputed layers are one more forward pass
    scored_fraction = passes.scored * training.epochs / passes.trained
    operations = tokens * (training.epochs * (forward + backward) + scored_fraction * forward)

    size = 4 if settings.engine.dtype == "float32" else 2
    sessions = min(most_sessions(settings), settings.rollout.tasks * settings.rollout.group_size / ranks)
    cache = 2.0 * shape.layers * shape.key_value_heads * shape.head_size * size * work.row / 2
    steps = work.sampled / ranks / sessions
    decoding = steps * (size * shape.parameters + sessions * cache) / rates.decoding_bytes

    passed = traffic.gathered + traffic.reduced
    on_network = cluster.machines > 1
    across = traffic.replicated * cluster.gpus or passed  # bytes that cross a machine's network
    slowest = rates.network if on_network and not traffic.replicated else rates.link
    return UpdateTime(
        decoding=decoding,
        prompts=tokens * forward / rates.training_flops,
        arithmetic=operations / rates.training_flops,
        links=passed / rates.link if cluster.gpus > 1 else 0.0,
        network=across / rates.network if on_network else 0.0,
        weights=traffic.policy / slowest + traffic.files / FILES + traffic.files / LOAD,
        episodes=traffic.episodes * cluster.gpus / (rates.network if on_network else FILES),
    )
