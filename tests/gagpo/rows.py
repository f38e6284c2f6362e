"""An oracle's batch in the columns of the package, and the comparison of a loss with an oracle's."""

import numpy as np
import pytest
import torch

from gagpo.algorithms import Algorithm
from gagpo.controllers import Controllers
from gagpo.credit import Turns, advantages
from gagpo.objectives import Layout, policy_loss
from tests.oracles.episode_level import token_baseline


def turns_of(batch) -> Turns:
    turns = [turn for episode in batch for turn in episode.turns]
    return Turns.of(
        reward_N=[turn.reward for turn in turns],
        episode_N=np.repeat(np.arange(len(batch)), [len(episode.turns) for episode in batch]),
        group_E=[episode.group for episode in batch],
        state_N=[turn.state for turn in turns],
        penalty_N=[turn.penalty for turn in turns],
        tokens_N=[len(turn.new) for turn in turns],
        truncated_E=[episode.truncated for episode in batch],
        success_E=[episode.success for episode in batch],
        end_state_E=[episode.end for episode in batch],
        entropy_N=[float(turn.entropy.mean()) for turn in turns],
        energy_K=[x for turn in turns for x in token_baseline.energy(turn)],
    )


def column(batch, name) -> torch.Tensor:
    return torch.cat([getattr(turn, name) for episode in batch for turn in episode.turns])


def flat(advantages) -> np.ndarray:
    return np.array([x for episode in advantages for turn in episode for x in turn])


def credit_of(batch, algorithm, controllers=None, limit=512) -> np.ndarray:
    """The advantage of each token. limit: of a response, in tokens."""
    turns = turns_of(batch)
    turns = controllers.shape(turns, limit) if controllers else turns
    value_K = [x for episode in batch for turn in episode.turns for x in turn.value]
    return advantages(turns, algorithm.credit, np.array(value_K)).per_token()


def assert_same_loss(
    batch, algorithm: Algorithm, advantage: np.ndarray, expected: torch.Tensor, controllers: Controllers | None = None
) -> None:
    """The value and the gradient of ``algorithm``'s loss are those of ``expected``, an oracle's."""
    turns, controllers = turns_of(batch), controllers or Controllers(algorithm.controllers)
    token_turn = torch.arange(turns.num_turns).repeat_interleave(torch.as_tensor(turns.tokens_N))
    new = column(batch, "new").detach().requires_grad_()
    loss, _ = policy_loss(
        new,
        column(batch, "old"),
        torch.as_tensor(advantage),
        Layout.of(token_turn, torch.as_tensor(turns.episode_N)[token_turn]),
        algorithm,
        controls=controllers.controls(torch.as_tensor(turns.group_index_N)[token_turn]),
        ref_logprob_K=column(batch, "ref"),
        entropy_K=column(batch, "entropy"),
    )
    leaves = [turn.new for episode in batch for turn in episode.turns]
    gradient = torch.cat(torch.autograd.grad(expected, leaves)) if expected.requires_grad else torch.zeros_like(new)
    loss.backward()
    # Segment sizes and radii per task are float32: an error of 1e-7 of the terms, which may cancel in their sum.
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9 + 1e-7 * float(np.abs(advantage).mean()))
    assert new.grad.numpy() == pytest.approx(gradient.numpy(), rel=1e-5, abs=1e-8)
