"""How long an update takes on many ranks: rows dealt out by their tokens, micro-batches, exchange, optimiser steps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.planning.simulate.rates import Rates
from gagpo.settings import RunSettings


def passes(settings: RunSettings, rates: Rates) -> float:
    """Forward-and-backward passes that every trained token costs, forward passes counted by their share."""
    algorithm, training = settings.algorithm, settings.training
    scored = float(algorithm.correction.recomputes)
    reference = training.epochs * float(algorithm.kl.coefficient > 0)
    critic = algorithm.critic
    own = 1 if critic is not None and critic.head == "separate" else 0
    values = 0 if critic is None else 1
    return training.epochs * (1 + own) + rates.score_share * (scored + reference + values)


@dataclass(frozen=True)
class Spent:
    """Seconds of an update: computing, waiting for the exchange beyond that, optimiser steps and all else."""

    computing: float
    exchange: float
    rest: float

    @property
    def total(self) -> float:
        return self.computing + self.exchange + self.rest


def update_seconds(settings: RunSettings, rates: Rates, rows: Sequence[int], ranks: int) -> Spent:
    """One update on ``rows`` (tokens of each) by ``ranks`` processors: the slowest rank's, mini-batch by mini-batch.

    Exchange goes on beside computation, so that a mini-batch takes the longer of the two. Rows are never cut.
    """
    training = settings.training
    order = np.random.default_rng(0).permutation(len(rows))
    each = rates.train_seconds * passes(settings, rates)
    computing = exchange = 0.0
    rest = rates.update_seconds
    # The slowest rank is waited for; exchange costs what computing does not hide.
    for part in np.array_split(order, training.minibatches):
        slowest = _slowest([rows[i] for i in part], ranks)
        micros = max(1, -(-slowest // training.microbatch_tokens)) * training.epochs
        exchanged = micros * rates.exchange_seconds(ranks)
        computing += slowest * each
        exchange += max(0.0, exchanged - slowest * each)
        rest += training.epochs * rates.step_seconds / ranks
    return Spent(computing, exchange, rest)


def _slowest(rows: Sequence[int], ranks: int) -> int:
    """Tokens of the fullest rank when the longest rows are dealt first, each to the emptiest rank."""
    loads = [0] * min(ranks, max(1, len(rows)))
    for tokens in sorted(rows, reverse=True):
        heapq.heapreplace(loads, loads[0] + tokens)
    return max(loads)
