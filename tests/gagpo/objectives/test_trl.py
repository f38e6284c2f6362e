"""The policy loss against TRL's, run on its own code with a namespace in the trainer's place."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from gagpo.algorithms import Algorithm
from gagpo.objectives import Layout, correction_weights, policy_loss

pytest.importorskip("trl", reason="TRL is the oracle of these tests: install trl")
from trl import GRPOTrainer

LENGTH = 24
GSPO_CLIP = {"name": "clip", "low": 3e-4, "high": 4e-4}
ROWS = {
    # name: (TRL's loss type, its ratio level, its epsilons, our cells)
    "grpo": ("grpo", "token", (0.2, 0.2), {"preset": "grpo"}),
    "dr_grpo": ("dr_grpo", "token", (0.2, 0.2), {"preset": "dr_grpo", "aggregation": {"length": LENGTH}}),
    "dapo": ("dapo", "token", (0.2, 0.28), {"preset": "dapo", "gate": {"dual": None}}),
    "gspo": ("grpo", "sequence", (3e-4, 4e-4), {"preset": "gspo"}),
    "gspo, far off": ("grpo", "sequence", (0.1, 0.15), {"preset": "gspo", "gate": {"low": 0.1, "high": 0.15}}),
    "gspo by tokens": ("grpo", "sequence", (0.1, 0.15), {"preset": "gspo_token", "gate": {"low": 0.1, "high": 0.15}}),
    "sapo": ("sapo", "token", (0.2, 0.2), {"preset": "sapo"}),
    # TRL's epsilon_high is the absolute bound of CISPO's weight, ours the radius above 1.
    "cispo": ("cispo", "token", (0.2, 1.3), {"preset": "cispo", "gate": {"high": 0.3}}),
}


def ragged_batch(seed: int, rows: int = 6):
    """Padded tensors as TRL has them, and the mask of the completions' tokens (one row has a single one)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LENGTH + 1, (rows,), generator=generator)
    lengths[0] = 1
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    new = -3 * torch.rand(rows, LENGTH, generator=generator, dtype=torch.float64)
    old = new + 0.3 * torch.randn(rows, LENGTH, generator=generator, dtype=torch.float64)
    ref = new + 0.3 * torch.randn(rows, LENGTH, generator=generator, dtype=torch.float64)
    advantage = torch.randn(rows, generator=generator, dtype=torch.float64)
    advantage[-1] = 0.0
    return new.requires_grad_(), old, ref, advantage, mask


def trl_loss(loss_type, level, epsilons, beta, new, old, ref, advantage, mask, weight=None):
    """``GRPOTrainer._compute_loss`` in evaluation mode: no gradient accumulation."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        _metrics={"eval": defaultdict(list)},
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        args=SimpleNamespace(
            delta=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, use_bias_correction_kl=False
        ),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=epsilons[0],
        epsilon_high=epsilons[1],
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=LENGTH,
        model=SimpleNamespace(training=False),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=weight is not None,
        vllm_importance_sampling_correction=weight is not None,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": weight,
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ROWS)
def test_value_and_gradient_are_those_of_trl(name, seed, beta):
    loss_type, level, epsilons, cells = ROWS[name]
    algorithm = Algorithm.model_validate({**cells, "kl": {"coefficient": beta}})
    new, old, ref, advantage, mask = ragged_batch(seed)
    expected = trl_loss(loss_type, level, epsilons, beta, new, old, ref, advantage, mask)
    token = mask.bool()
    row_K = torch.arange(len(mask)).repeat_interleave(mask.sum(dim=1))
    actual, _ = policy_loss(
        new[token], old[token], advantage[row_K], Layout.of(row_K), algorithm, ref_logprob_K=ref[token]
    )
    assert actual.item() == pytest.approx(expected.item(), abs=1e-6)
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (actual, expected)]
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-6)
    assert gradients[1].abs().max() > 1e-3 or name == "gspo"


# GSPO by tokens has TRL's gradient only where a sequence's tokens weigh the same.
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "gspo, far off", "sapo", "cispo"])
def test_a_correction_weighs_tokens_as_trl_does(name):
    loss_type, level, epsilons, cells = ROWS[name]
    algorithm = Algorithm.model_validate({**cells, "kl": {"coefficient": 0.04}, "correction": "tis"})
    new, old, ref, advantage, mask = ragged_batch(0)
    sampler = old + 0.5 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.exp(old - sampler).clamp(max=2.0)
    expected = trl_loss(loss_type, level, epsilons, 0.04, new, old, ref, advantage, mask, weight)
    token = mask.bool()
    row_K = torch.arange(len(mask)).repeat_interleave(mask.sum(dim=1))
    weight_K, _ = correction_weights(old[token], sampler[token], Layout.of(row_K), algorithm.correction)
    actual, _ = policy_loss(
        new[token],
        old[token],
        advantage[row_K],
        Layout.of(row_K),
        algorithm,
        ref_logprob_K=ref[token],
        weight_K=weight_K,
    )
    assert actual.item() == pytest.approx(expected.item(), abs=1e-6)
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (actual, expected)]
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-6)
