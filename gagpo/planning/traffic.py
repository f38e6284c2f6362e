"""Bytes that an iteration moves over each link, from formulas: collective calls of FSDP2, weights to servers, episodes.

Of R ranks each receives the fraction (R-1)/R of what all have together. NCCL's ring passes the same amount over the
network cards of each machine, for all of its GPUs together. ``benchmarks/scaling.py`` compares the formulas with what
two gloo ranks send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gagpo.agents.engines.weight_files import weight_files
from gagpo.distributed.ranks import replicas_of
from gagpo.model.shape import Shape
from gagpo.planning.memory import adapter
from gagpo.settings import RunSettings

TEXT_BYTES = 1500  # of the texts of a turn: observation, response, action and state key


@dataclass(frozen=True)
class Cluster:
    """Machines with GPUs, one rank on each GPU.

    gpus: of each machine.
    """

    machines: int = 1
    gpus: int = 1

    @property
    def ranks(self) -> int:
        return self.machines * self.gpus

    def replicas(self, settings: RunSettings) -> int:
        """Copies of the sharded weights, as ranks make them."""
        return 1 if settings.training.unsharded == "least" else replicas_of(self.ranks, self.gpus)


@dataclass(frozen=True)
class Traffic:
    """Bytes of an iteration.

    gathered: weights that each rank receives from the others for its forward and backward passes.
    reduced: gradients that each rank sends to the others.
    replicated: gradients that each rank exchanges with the other machines' copies of its shard.
    policy: weights that each rank receives once more, for the engine.
    files: weights that each machine writes for its servers.
    read: of these files, by all servers of a machine.
    episodes: that each rank receives from the others.
    cluster: whose ranks train together.
    """

    gathered: float
    reduced: float
    replicated: float
    policy: float
    files: float
    read: float
    episodes: float
    cluster: Cluster

    @property
    def link(self) -> float:
        """Bytes that one GPU receives from others in collective calls."""
        return self.gathered + self.reduced + self.policy

    @property
    def network(self) -> float:
        """Bytes that one machine receives over its network, with the episodes of all its ranks."""
        if self.cluster.machines == 1:
            return 0.0
        # A flat ring passes through every machine once, for all of its ranks; copies of shards are exchanged by each.
        weights = self.replicated * self.cluster.gpus if self.replicated else self.link
        return weights + self.episodes * self.cluster.gpus


@dataclass(frozen=True)
class Passes:
    """Passes of one rank through the model in an iteration, one for each micro-batch.

    trained: forward and backward.
    scored: forward only: log-probabilities before the first step, and those of the reference.
    """

    trained: int
    scored: int


def passes_of(settings: RunSettings, tokens: float) -> Passes:
    """The passes of a rank. tokens: read in training by all ranks, in one epoch."""
    training = settings.training
    ranks = settings.processes
    each = max(1, math.ceil(tokens / (ranks * training.minibatches * training.microbatch_tokens)))
    epoch = training.minibatches * each
    scored = 0
    if settings.algorithm.correction.recomputes:
        # The first step of a single epoch scores its own rows.
        scored = epoch if training.epochs > 1 else epoch - each
    if settings.algorithm.kl.coefficient > 0:
        scored += epoch
    return Passes(training.epochs * epoch, scored)


def traffic_of(settings: RunSettings, shape: Shape, cluster: Cluster, passes: Passes, experience: float) -> Traffic:
    """What one iteration moves. experience: bytes of all episodes, see :func:`experience_bytes`."""
    size = _size(settings.training.dtype)
    from_peers = (cluster.ranks - 1) / cluster.ranks
    replicas = cluster.replicas(settings)
    shards = cluster.ranks // replicas
    received = (shards - 1) / shards
    adapted = adapter(settings, shape)
    weights = shape.parameters + adapted
    # Layers are gathered for the forward pass and again for the backward pass. Embeddings and output layer stay.
    layers = weights - shape.embeddings
    steps = min(passes.trained, settings.training.epochs * settings.training.minibatches)
    unsharded = settings.training.unsharded
    trained = steps * weights if unsharded == "all" else passes.trained * (2 * layers + shape.embeddings)
    gathered = size * received * (trained + passes.scored * weights)
    reductions = steps if unsharded in ("gradients", "all") else passes.trained
    gradients = 4 * reductions * (adapted or shape.parameters)
    reduced = received * gradients
    replicated = 2 * (replicas - 1) / replicas * gradients / shards  # an all-reduce passes everything twice
    model_bytes = _size(settings.engine.dtype) * shape.parameters
    policy = float(model_bytes)
    files = read = 0.0
    if settings.engine.options.serves:
        adapter_bytes = 4 * adapted if adapted else None  # a server loads an adapter next to its base
        files = float(weight_files(model_bytes, adapter_bytes).bytes)
        policy = files
        read = files * cluster.gpus
    return Traffic(gathered, reduced, replicated, received * policy, files, read, from_peers * experience, cluster)


def experience_bytes(turns: float, ids: float, response: float) -> float:
    """Bytes of the message of ``turns`` turns. ids: tokens of a turn that no earlier one has; response: of them."""
    return turns * (4.0 * ids + 4.0 * response + TEXT_BYTES)


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
