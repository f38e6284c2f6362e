"""A batch as papers see it, lists of episodes of turns of tokens, and the few sums that every paper needs.

Nothing in this folder knows the package under test: each file is one paper, written down slowly and plainly.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import torch


@dataclass
class Turn:
    """One action: state it was taken in, what it was paid and fined, log-probabilities of its tokens (float64)."""

    state: int
    reward: float
    penalty: float
    new: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    entropy: torch.Tensor
    value: list[float]


@dataclass
class Episode:
    group: int
    success: bool
    truncated: bool
    end: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(turn.reward - turn.penalty for turn in self.turns)


Batch = list[Episode]
Advantages = list[list[list[float]]]
"""One per token: [episode][turn][token]."""


def random_batch(seed: int, spread: float = 0.3) -> Batch:
    """Two tasks of four episodes of one to four turns of one to four tokens, with few states; success pays 10."""
    rng = random.Random(seed)

    def column(count: int, low: float, high: float) -> torch.Tensor:
        return torch.tensor([rng.uniform(low, high) for _ in range(count)], dtype=torch.float64)

    batch = []
    for group in (4, 1):
        for _ in range(4):
            success = rng.random() < 0.5
            episode = Episode(group, success, not success and rng.random() < 0.7, rng.randrange(5))
            for _ in range(rng.randint(1, 4)):
                count = rng.randint(1, 4)
                old = column(count, -3, 0)
                new = (old + column(count, -spread, spread)).requires_grad_()
                ref = old + column(count, -0.3, 0.3)
                value = [rng.uniform(-1, 1) for _ in range(count)]
                fine = 0.1 if rng.random() < 0.2 else 0.0
                state = rng.randrange(3)
                episode.turns.append(Turn(state, 0.0, fine, new, old, ref, column(count, 0, 2), value))
            episode.turns[-1] = replace(episode.turns[-1], reward=10.0 if success else 0.0)
            batch.append(episode)
    rng.shuffle(batch)
    return batch


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def deviation(values, ddof: int = 1) -> float:
    """0 for a single value and for equal ones."""
    values = list(values)
    if len(values) <= ddof or max(values) == min(values):
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - ddof))


def mates(batch: Batch, episode: Episode) -> Batch:
    """The episodes of the same task, the episode itself included."""
    return [other for other in batch if other.group == episode.group]


def discounted(episode: Episode, gamma: float, fined: bool = True) -> list[float]:
    """Return-to-go of each turn."""
    rewards = [turn.reward - (turn.penalty if fined else 0.0) for turn in episode.turns]
    return [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]


def per_episode(batch: Batch, number) -> Advantages:
    """The same advantage for every token of an episode."""
    return [[[number(episode)] * len(turn.new) for turn in episode.turns] for episode in batch]


def per_turn(batch: Batch, numbers: list[list[float]]) -> Advantages:
    return [
        [[numbers[e][t]] * len(turn.new) for t, turn in enumerate(episode.turns)] for e, episode in enumerate(batch)
    ]


def group_relative(batch: Batch, outcome=lambda episode: episode.total, ddof: int = 1) -> Advantages:
    """``(R - mean)/(std + 1e-6)``, 0 where all are equal."""

    def advantage(episode):
        results = [outcome(other) for other in mates(batch, episode)]
        spread = deviation(results, ddof)
        return (outcome(episode) - mean(results)) / (spread + 1e-6) if spread else 0.0

    return per_episode(batch, advantage)


def clipped(ratio: torch.Tensor, advantage: float, low: float, high: float) -> torch.Tensor:
    """PPO's ``min(r A, clip(r) A)``."""
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)


def k3(turn: Turn) -> torch.Tensor:
    """Estimate of KL(policy || reference) of each token."""
    ahead = turn.ref - turn.new
    return torch.exp(ahead) - ahead - 1


def token_terms(batch: Batch, advantages: Advantages, term) -> list[list[torch.Tensor]]:
    """``term(turn, advantages of its tokens)`` of every turn: one number per token."""
    return [
        [term(turn, torch.tensor(advantages[e][t], dtype=torch.float64)) for t, turn in enumerate(episode.turns)]
        for e, episode in enumerate(batch)
    ]


def mean_over_tokens(terms: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.cat([term for episode in terms for term in episode]).mean()


def mean_over_sequences(terms: list[list[torch.Tensor]]) -> torch.Tensor:
    """Mean over episodes of the mean over their tokens."""
    return torch.stack([torch.cat(episode).mean() for episode in terms]).mean()


def mean_over_actions(terms: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([term.mean() for episode in terms for term in episode]).mean()


def ppo_terms(batch: Batch, advantages: Advantages, low: float = 0.2, high: float = 0.2) -> list[list[torch.Tensor]]:
    """PPO's clipped term of every token, with its own ratio."""

    def term(turn, advantage):
        ratio = torch.exp(turn.new - turn.old)
        return torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)

    return token_terms(batch, advantages, term)


def kl_terms(batch: Batch) -> list[list[torch.Tensor]]:
    return [[k3(turn) for turn in episode.turns] for episode in batch]


def entropy_terms(batch: Batch) -> list[list[torch.Tensor]]:
    return [[turn.entropy for turn in episode.turns] for episode in batch]


def whitened(numbers: Advantages) -> Advantages:
    """``(x - mean)/sqrt(var + 1e-8)`` over all tokens, sample variance."""
    flat = [x for episode in numbers for turn in episode for x in turn]
    if max(flat) == min(flat):
        return [[[0.0 for _ in turn] for turn in episode] for episode in numbers]
    centre, variance = mean(flat), deviation(flat) ** 2
    return [[[(x - centre) / math.sqrt(variance + 1e-8) for x in turn] for turn in episode] for episode in numbers]


def generalised(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """GAE of one trajectory whose value after the end is 0."""
    result = []
    for t in range(len(rewards)):
        advantage, factor = 0.0, 1.0
        for later in range(t, len(rewards)):
            ahead = values[later + 1] if later + 1 < len(values) else 0.0
            advantage += factor * (rewards[later] + gamma * ahead - values[later])
            factor *= gamma * lam
        result.append(advantage)
    return result
