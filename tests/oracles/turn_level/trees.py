"""Tree-GRPO (arXiv 2509.21240), ARPO's hard estimate (2507.19849) and AT2PO (2601.04767), and GAGPO on trees.

A group is a list of tries, a try the list of the turns on its path; a turn that was played once is one object, whatever
paths it lies on. Everything is found by looking at all paths.
"""

import math
from dataclasses import dataclass

import torch

from tests.oracles.batch import (
    clipped,
    deviation,
    group_relative,
    kl_terms,
    mean,
    mean_over_sequences,
    mean_over_tokens,
    ppo_terms,
)


@dataclass(eq=False)
class Node:
    """A turn: its net reward, its state, and the mean of -log mu over its tokens."""

    reward: float
    state: int = 0
    surprise: float = 0.0


def relative(number, numbers):
    spread = deviation(numbers)
    return (number - mean(numbers)) / (spread + 1e-6) if spread else 0.0


def outcomes(tries):
    return [sum(node.reward for node in path) for path in tries]


def through(tries, node):
    """The tries that a turn lies on."""
    return [number for number, path in enumerate(tries) if node in path]


def children(tries, node):
    found = []
    for path in tries:
        if node in path[:-1]:
            child = path[path.index(node) + 1]
            if child not in found:
                found.append(child)
    return found


def arpo(tries, node):
    totals = outcomes(tries)
    return mean(relative(totals[number], totals) for number in through(tries, node))


def tree_grpo(tries, node):
    totals = outcomes(tries)

    def advantage(number):
        own_tree = [total for total, path in zip(totals, tries, strict=True) if path[0] is tries[number][0]]
        return relative(totals[number], totals) + relative(totals[number], own_tree)

    return mean(advantage(number) for number in through(tries, node))


def at2po(tries, node, weigh=math.exp):
    behind = children(tries, node)
    if not behind:
        totals = outcomes(tries)
        return relative(totals[through(tries, node)[0]], totals)
    weights = [weigh(child.surprise) for child in behind]
    values = [at2po(tries, child, weigh) for child in behind]
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


def to_go(tries, node, gamma):
    behind = children(tries, node)
    return node.reward + (gamma * mean(to_go(tries, child, gamma) for child in behind) if behind else 0.0)


def gagpo(tries, node, gamma, lam):
    """Not normalised. A state's value is the mean over the turns that were played in it."""
    nodes = {id(one): one for path in tries for one in path}.values()

    def value(state):
        return mean(to_go(tries, one, gamma) for one in nodes if one.state == state)

    behind = children(tries, node)
    ahead = gamma * mean(value(child.state) for child in behind) if behind else 0.0
    later = gamma * lam * mean(gagpo(tries, child, gamma, lam) for child in behind) if behind else 0.0
    return node.reward + ahead - value(node.state) + later


def advantages(batch):
    """Of all three where nothing branches."""
    return group_relative(batch)


def tree_grpo_loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))


def arpo_loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages))


def at2po_loss(batch, advantages):
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            ratio = torch.exp((turn.new - turn.old).mean()).detach() * torch.exp(turn.new - turn.new.detach())
            terms[-1].append(clipped(ratio, row[0], 3e-3, 4e-3))
    return -mean_over_sequences(terms)
