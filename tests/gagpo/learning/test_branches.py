"""Branches in the update: what a branch shares is read once and trained once."""

import copy

import numpy as np
import pytest
import torch

from gagpo.agents.episodes import Episode
from gagpo.algorithms import load
from gagpo.credit import give_credit, turns_for
from gagpo.learning.batch import build_rows
from gagpo.learning.packing import Packing
from gagpo.objectives import Layout, policy_loss
from tests.gagpo.learning.test_batch import conversation
from tests.gagpo.learning.test_packing import updated


@pytest.fixture(scope="module")
def group():
    """A try of three turns, one that branches from its second, and one that branches from that one's third."""
    rng = np.random.default_rng(4)

    def words(count):
        return rng.integers(5, 99, count)

    prompt, one = words(9), words(4)
    first = conversation((prompt, one), (words(3), words(4)))
    last = np.concatenate([first.turns[1].prompt_ids, first.turns[1].response_ids, words(3)])
    first.turns += conversation((last, words(4))).turns
    second = branch(first, 1, words(4), words(3), words(4))
    third = branch(second, 2, words(4))
    for sample, (episode, reward) in enumerate(((first, 0.0), (second, 1.0), (third, 0.0))):
        episode.sample, episode.outcome, episode.turns[-1].reward = sample, "terminated", reward
    for episode in (first, second, third):
        for turn in episode.own:
            turn.logprobs = np.full(4, -3.0, np.float32)
    second.parent, third.parent = 0, 1
    return [first, second, third]


def branch(parent, fork, said, seen=None, then=None):
    episode = Episode("", fork=fork, turns=parent.turns[:fork])
    episode.turns += conversation((parent.turns[fork].prompt_ids, said)).turns
    if seen is not None:
        last = np.concatenate([parent.turns[fork].prompt_ids, said, seen])
        episode.turns += conversation((last, then)).turns
    return episode


def test_a_shared_beginning_is_read_once_and_trained_in_the_try_that_played_it(group):
    rows = build_rows(group)
    assert [len(row.turn_K) for row in rows] == [12, 8, 4] and [row.turn_K[0] for row in rows] == [0, 3, 5]
    beginnings = {tuple(row.read_L[: end + 1].tolist()) for row in rows for end in range(row.length)}
    assert Packing(10**6, trees=True).size(rows) == len(beginnings) < sum(row.length for row in rows)


@pytest.mark.parametrize("name", ["gagpo", "arpo", "at2po", "tree_grpo"])
def test_the_gradient_is_that_of_every_turn_by_itself(tiny, group, name):
    algorithm = load(name, {"kl": {"coefficient": 0.0}}).resolved(16)
    turns, rows = turns_for(group, algorithm.credit), build_rows(group)
    credit = give_credit(turns, algorithm.credit)
    once = {"epochs": 1, "minibatches": 1, "max_grad_norm": 1e9}
    shared, _, _ = updated(tiny[0], rows, algorithm, credit, Packing(10**6, trees=True), **once)

    # Every turn is read alone, behind its own prompt, and the loss is that of the whole batch.
    model = copy.deepcopy(tiny[0])
    model.set_attn_implementation("eager")
    new, old = [], []
    for turn in (turn for episode in group for turn in episode.own):
        ids = torch.as_tensor(np.concatenate([turn.prompt_ids, turn.response_ids])).long()
        logits = model(ids[None]).logits[0, len(turn.prompt_ids) - 1 : -1]
        new.append(torch.log_softmax(logits, -1)[torch.arange(4), ids[-4:]])
        old.append(torch.as_tensor(turn.logprobs))
    turn_K = torch.arange(turns.turns).repeat_interleave(4)
    layout = Layout.of(turn_K, torch.as_tensor(turns.episode_N)[turn_K])
    advantage_K = torch.as_tensor(credit.per_token(), dtype=torch.float32)
    loss, _ = policy_loss(torch.cat(new), torch.cat(old), advantage_K, layout, algorithm)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    alone = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(shared, alone, rtol=0, atol=2e-6)
