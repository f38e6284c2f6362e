"""A policy small enough for hundreds of runs: softmax over the admissible actions on hashed features of text.

It reads what a language model is shown (the goal, its past actions, which were refused) and chooses among the actions
that the environment lists. A turn's prompt is the hashed features of every admissible action, its response the number
of the chosen one, so that its episodes are those of any other agent, and credit and objective are the suite's own.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.agent import EpisodeState
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn

WIDTH = 1 << 16
"""Weights of the policy, and of the critic."""

GOAL_WORDS, REPEATS, RANKS = 8, 3, 12
FEATURES = GOAL_WORDS + 8
"""Features of an action."""

STATE_FEATURES = GOAL_WORDS + 5
"""Features of a state, for a critic."""


class SmallPolicy(torch.nn.Module):
    """One weight per hashed feature; ``value`` has as many of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH))
        self.value_weight = torch.nn.Parameter(torch.zeros(WIDTH))

    def logprobs(self, turns: Sequence[Turn]) -> tuple[Tensor, Tensor]:
        """Log-probability of what each turn chose, and the policy's entropy there, float32[N] each."""
        logprob_A, turn_A, chosen_N = self._distributions(turns)
        entropy_N = torch.zeros(len(turns)).index_add(0, turn_A, -logprob_A.exp() * logprob_A)
        return logprob_A[chosen_N], entropy_N

    @torch.no_grad()
    def measures(self, turns: Sequence[Turn]) -> tuple[np.ndarray, np.ndarray]:
        """The columns ``entropy_N`` and ``energy_K`` of :class:`gagpo.data.Turns`; a turn has one token."""
        logprob_A, turn_A, chosen_N = self._distributions(turns)
        probability_A = logprob_A.exp()
        entropy_N = torch.zeros(len(turns)).index_add(0, turn_A, -probability_A * logprob_A)
        squares_N = torch.zeros(len(turns)).index_add(0, turn_A, probability_A.square())
        return entropy_N.numpy(), (1 - 2 * probability_A[chosen_N] + squares_N).numpy()

    def _distributions(self, turns: Sequence[Turn]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of each admissible action, the turn that it belongs to, and the place of the chosen ones."""
        features = [turn.prompt_ids[STATE_FEATURES:] for turn in turns]
        count_N = torch.tensor([len(row) // FEATURES for row in features])
        logit_A = self.weight[torch.as_tensor(np.concatenate(features).reshape(-1, FEATURES)).long()].sum(1)
        turn_A = torch.arange(len(turns)).repeat_interleave(count_N)
        top_N = torch.full((len(turns),), -torch.inf).scatter_reduce(0, turn_A, logit_A.detach(), "amax")
        shifted_A = logit_A - top_N[turn_A]
        total_N = torch.zeros(len(turns)).index_add(0, turn_A, shifted_A.exp()).log()
        chosen_N = count_N.cumsum(0) - count_N + torch.tensor([int(turn.response_ids[0]) for turn in turns])
        return shifted_A - total_N[turn_A], turn_A, chosen_N

    def values(self, turns: Sequence[Turn]) -> Tensor:
        """The critic's value of each turn, float32[N]."""
        place_NF = torch.as_tensor(np.stack([turn.prompt_ids[:STATE_FEATURES] for turn in turns])).long()
        return self.value_weight[place_NF].sum(1)


class SmallAgent:
    """Plays by the policy; an episode's seed decides what it draws. greedy: takes the likeliest action instead."""

    def __init__(self, policy: SmallPolicy, greedy: bool = False):
        self.policy, self.greedy = policy, greedy

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        weight = self.policy.weight.detach().numpy()
        read = read_states(states)
        logit_A = weight[np.concatenate([row[STATE_FEATURES:] for row in read]).reshape(-1, FEATURES)].sum(1)
        ends = np.cumsum([len(row[STATE_FEATURES:]) // FEATURES for row in read])
        logits = np.split(logit_A, ends[:-1])
        return [self._choose(*one) for one in zip(states, read, logits, strict=True)]

    def _choose(self, state: EpisodeState, read: np.ndarray, logit_A: np.ndarray) -> Turn:
        probability_A = np.exp(logit_A - logit_A.max())
        probability_A /= probability_A.sum()
        if self.greedy:
            chosen = int(logit_A.argmax())
        else:
            drawn = random.Random(state.episode.seed * 1000 + len(state.episode.turns)).random()
            chosen = min(int(np.searchsorted(np.cumsum(probability_A), drawn)), len(logit_A) - 1)
        action = state.info["admissible_actions"][chosen]
        response_ids = np.array([chosen], np.int32)
        logprobs = np.log(probability_A[[chosen]]).astype(np.float32)
        return Turn("", action, action, prompt_ids=read, response_ids=response_ids, logprobs=logprobs)

    def forget(self, slot: int) -> None:
        pass


def read_states(states: Sequence[EpisodeState]) -> list[np.ndarray]:
    """What the policy reads in each, int32[STATE_FEATURES + A * FEATURES], of the A admissible actions in order."""
    contexts, own, ranks, repeats, counts = [], [], [], [], []
    for state in states:
        # Codes of what is known of the state; of each action, its own, its place, and how often it was done.
        actions = state.info.get("admissible_actions")
        if not actions:
            raise InvalidArgument(
                f"the small policy chooses among admissible actions, and {state.episode.task!r} has none"
            )
        turns = state.episode.turns
        goal = goal_of(turns[0].observation if turns else state.observation)
        done = [turn.action for turn in turns]
        contexts.append(context_codes(goal, turns))
        own += [action_codes(action, goal) for action in actions]
        ranks += [min(rank, RANKS) for rank in range(len(actions))]
        repeats += [min(done.count(action), REPEATS) for action in actions]
        counts.append(len(actions))

    # An action's shape meets everything that is known of the state; its place, its words and its repeats stand apart.
    state_BC = np.array(contexts, np.uint64)
    context_AC, own_A3 = np.repeat(state_BC[:, :-1], counts, 0), np.array(own, np.uint64)
    rank_A, repeat_A = np.array(ranks, np.uint64), np.array(repeats, np.uint64)
    crossed_AC = mixed(own_A3[:, :1], context_AC)
    placed_A = mixed(mixed(own_A3[:, 2], context_AC[:, 0]), rank_A + np.uint64(31))
    alone = [own_A3[:, 0], own_A3[:, 1], mixed(own_A3[:, 0], repeat_A + np.uint64(7)), placed_A]
    feature_AF = (np.concatenate([crossed_AC, np.stack(alone, 1)], 1) % np.uint64(WIDTH)).astype(np.int32)
    state_BF = (state_BC % np.uint64(WIDTH)).astype(np.int32)
    parts = np.split(feature_AF, np.cumsum(counts)[:-1])
    return [np.concatenate([row, part.ravel()]) for row, part in zip(state_BF, parts, strict=True)]


def context_codes(goal: frozenset[str], turns: Sequence[Turn]) -> list[int]:
    """Codes of a state: what was done last, last but one, and at all with effect; a refusal; the goal; the time."""
    shapes = [shape(turn.action, goal) for turn in turns]
    before, last = ["", "", *shapes][-2:]
    changed = sorted({one for one, turn in zip(shapes, turns, strict=True) if turn.valid})
    refused = "refused" if turns and not turns[-1].valid else ""
    known = [code(last), code(last, before), code(",".join(changed)), code(refused, last)]
    return [*known, *goal_codes(goal), code("turn", str(min(len(turns) // 3, 9)))]


def mixed(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pairs of codes as codes: a multiplicative hash of both."""
    with np.errstate(over="ignore"):
        product = (left * np.uint64(0x9E3779B97F4A7C15)) ^ (right * np.uint64(0xC2B2AE3D27D4EB4F))
        return np.asarray((product * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(32))


@functools.lru_cache(1 << 16)
def code(*parts: str) -> int:
    return crc32("\0".join(parts).encode())


@functools.lru_cache(1 << 12)
def goal_of(first: str) -> frozenset[str]:
    """The words of what is to be done, of an episode's first observation."""
    text = first.rpartition("Your task is to: ")[2].lower()
    return frozenset(re.findall(r"[a-z]+", text))


@functools.lru_cache(1 << 12)
def goal_codes(goal: frozenset[str]) -> tuple[int, ...]:
    """Codes of so many of the goal's words; the same one again where there are fewer."""
    words = sorted(goal, key=lambda word: code("order", word))[:GOAL_WORDS]
    return tuple(code("goal", word) for word in [*words, *[""] * (GOAL_WORDS - len(words))])


@functools.lru_cache(1 << 18)
def shape(action: str, goal: frozenset[str]) -> str:
    """The action's verb, and which of its words the goal has: ``take 1 0`` of a wanted thing from some place."""
    words = [word for word in re.findall(r"[a-z]+", action.lower()) if word not in PREPOSITIONS]
    if not words:
        return ""
    found = [str(int(word in goal)) for word in words[1:]]
    return " ".join([words[0], str(int(words[0] in goal)), *found[:4]])


PREPOSITIONS = {"from", "to", "with", "in", "on", "the", "a"}


@functools.lru_cache(1 << 18)
def action_codes(action: str, goal: frozenset[str]) -> tuple[int, int, int]:
    """Codes of its shape, of its words without numbers, and of its verb."""
    words = re.findall(r"[a-z]+", action.lower())
    return code("shape", shape(action, goal)), code("words", *words), code("verb", *words[:1])
