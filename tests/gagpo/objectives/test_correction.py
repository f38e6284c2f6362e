"""Correction of the sampler against the trainer: weights by hand, and what they do to a loss."""

import math

import pytest
import torch
from pydantic import ValidationError

from gagpo.algorithms import load
from gagpo.objectives import Correction, Layout, correction_weights, policy_loss, summary
from tests.gagpo.objectives.cases import CHOICES, GATES, ROW, TURN, objective, random_batch
from tests.rejections import rejects

LAYOUT = Layout.of(torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1]))
SAMPLER = torch.full((6,), -1.0)
TRAINER = SAMPLER + torch.log(torch.tensor([1.0, 3.0, 0.5, 4.0, 4.0, 4.0]))


def test_tokens_are_weighted_up_to_the_cap():
    weight, metrics = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="tis"))
    assert weight.tolist() == pytest.approx([1, 2, 0.5, 2, 2, 2])
    assert correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="tis", cap=3.5))[0].tolist() == pytest.approx(
        [1, 3, 0.5, 3.5, 3.5, 3.5]
    )
    assert metrics["mismatch_weight"].item() == pytest.approx(1 + 3 + 0.5 + 12)
    assert metrics["mismatch_max"].item() == pytest.approx(math.log(4))
    k3 = sum(w - 1 - math.log(w) for w in (1, 3, 0.5, 4, 4, 4))
    assert metrics["mismatch_kl"].item() == pytest.approx(k3)


def test_icepop_masks_tokens_outside_its_range_and_weights_the_others():
    weight, metrics = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="icepop"))
    assert weight.tolist() == pytest.approx([1, 3, 0.5, 4, 4, 4])
    assert metrics["masked_tokens"].item() == 0
    weight, metrics = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="icepop", low=0.6, high=3.5))
    assert weight.tolist() == pytest.approx([1, 3, 0, 0, 0, 0])
    assert summary([metrics | {"tokens": torch.tensor(6.0)}])["masked_tokens"] == pytest.approx(4 / 6)


def test_sequences_are_masked_by_their_geometric_mean():
    weight, metrics = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="sequence"))
    # Geometric means: (1 * 3 * 0.5)^(1/3) = 1.14, and 4.
    assert weight.tolist() == [1, 1, 1, 0, 0, 0]
    assert summary([metrics | {"tokens": torch.tensor(6.0)}])["masked_tokens"] == pytest.approx(0.5)
    assert correction_weights(SAMPLER, TRAINER, LAYOUT, Correction(name="sequence"))[0].tolist() == [1, 1, 1, 0, 0, 0]
    for options, expected in (({"high": 4.5}, [1] * 6), ({"high": 1.1}, [0] * 6), ({"low": 0}, [1, 1, 1, 0, 0, 0])):
        weight, _ = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name="sequence", **options))
        assert weight.tolist() == expected


@pytest.mark.parametrize("gate", ["clip", "sapo", "cispo"])
def test_the_sequence_mask_is_a_loop_over_rows_in_value_and_gradient(gate):
    """Masked rows count in the divisor and have no gradient."""
    new, old, advantage = random_batch(per=None)
    sampler = old + torch.randn(len(old), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    layout, bare = Layout.of(TURN, ROW), objective(gate=gate)
    expected, masked = 0.0, 0
    for row in sorted(set(ROW.tolist())):
        tokens = [k for k in range(len(ROW)) if ROW[k] == row]
        mean = math.exp(sum(old[k].item() - sampler[k].item() for k in tokens) / len(tokens))
        if 0.8 <= mean <= 1.25:
            segment = policy_loss(new[tokens], old[tokens], advantage[tokens], Layout.of(TURN[tokens]), bare)[0]
            expected = expected + segment * len(tokens) / len(new)
        else:
            masked += len(tokens)
    weight, _ = correction_weights(old, sampler, layout, Correction(name="sequence", low=0.8, high=1.25))
    loss = policy_loss(new, old, advantage, layout, bare, weight_K=weight)[0]
    assert 0 < masked < len(new) and int((weight == 0).sum()) == masked
    assert loss.item() == pytest.approx(expected.item())
    actual, loops = (torch.autograd.grad(value, new)[0].numpy() for value in (loss, expected))
    assert actual == pytest.approx(loops, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_icepop_with_every_gate_is_its_formula_token_by_token(gate, seed):
    """``M(k) = k`` within [.5, 5] and 0 beyond, times each token's own objective; gradients too."""
    new, old, advantage = random_batch(seed, per=None)
    sampler = old + 2 * torch.randn(len(old), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    layout, bare = Layout.of(TURN, ROW), objective(gate=gate)
    alone, expected = Layout.of(torch.zeros(1, dtype=torch.long)), 0.0
    for k in range(len(new)):
        ratio = math.exp(old[k].item() - sampler[k].item())
        if 0.5 <= ratio <= 5:
            item = slice(k, k + 1)
            expected = expected + ratio * policy_loss(new[item], old[item], advantage[item], alone, bare)[0] / len(new)
    weight, _ = correction_weights(old, sampler, layout, Correction(name="icepop"))
    loss = policy_loss(new, old, advantage, layout, bare, weight_K=weight)[0]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    actual, reference = (torch.autograd.grad(x, new)[0].numpy() for x in (loss, expected))
    assert actual == pytest.approx(reference, rel=1e-6, abs=1e-12)
    assert ((actual == 0) >= (weight == 0).numpy()).all() and (weight == 0).any()


@pytest.mark.parametrize("name", ["none", "recompute"])
def test_the_mismatch_is_measured_where_nothing_is_weighted(name):
    weight, metrics = correction_weights(TRAINER, SAMPLER, LAYOUT, Correction(name=name))
    assert weight is None and metrics["mismatch_max"].item() == pytest.approx(math.log(4))
    assert Correction(name=name).recomputes == (name == "recompute")


def test_metrics_add_up_over_micro_batches():
    new, old, advantage = random_batch()
    sampler = old + 0.3 * torch.randn(len(old), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    chosen = Correction(name="icepop", low=0.95, high=1.05)

    def logged(parts):
        results = []
        for segment in parts:
            layout = Layout.of(TURN[segment], ROW[segment])
            weight, metrics = correction_weights(old[segment], sampler[segment], layout, chosen)
            _, more = policy_loss(new[segment], old[segment], advantage[segment], layout, objective(), weight_K=weight)
            results.append(metrics | more)
        return summary(results)

    full, split_task = logged([ROW >= 0]), logged([ROW < 1, ROW == 1, ROW > 1])
    assert full == pytest.approx(split_task)
    assert 0 < full["masked_tokens"] < 1
    assert full["mismatch_max"] == pytest.approx((old - sampler).abs().max().item(), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["tis", "icepop", "sequence"])
def test_non_finite_log_probabilities_are_not_masked(value, name):
    broken = TRAINER.clone()
    broken[3] = value
    weight, _ = correction_weights(broken, SAMPLER, LAYOUT, Correction(name=name))
    assert torch.isnan(weight[3]) and not torch.isnan(weight[:3]).any()


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
def test_a_weight_of_one_changes_nothing_and_masked_sequences_have_no_gradient(chosen):
    layout = Layout.of(TURN, ROW)
    new, old, advantage = random_batch()
    plain = policy_loss(new, old, advantage, layout, chosen)[0]
    assert policy_loss(new, old, advantage, layout, chosen, weight_K=torch.ones(len(ROW)))[0].item() == plain.item()
    policy_loss(new, old, advantage, layout, chosen, weight_K=(ROW != 1).double())[0].backward()
    assert (new.grad[ROW == 1] == 0).all() and (new.grad[ROW != 1] != 0).any()


@pytest.mark.parametrize("gate", ["clip", "sapo", "cispo", "dppo", "none"])
def test_each_tokens_term_is_weighted_and_kl_and_entropy_are_not(gate):
    new, old, advantage = random_batch(per=None)
    layout = Layout.of(TURN, ROW)
    weight = torch.rand(len(TURN), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = objective(gate=gate, kl={"coefficient": 0.3}, entropy=0.2)
    more = {"ref_logprob_K": old, "entropy_K": torch.ones_like(old)}
    alone, bare = Layout.of(torch.zeros(1, dtype=torch.long)), objective(gate=gate)
    by_token = [
        policy_loss(new[k : k + 1], old[k : k + 1], advantage[k : k + 1], alone, bare)[0] for k in range(len(TURN))
    ]
    remaining = policy_loss(new, old, 0 * advantage, layout, chosen, **more)[0]
    expected = (torch.stack(by_token) * weight).mean() + remaining
    loss = policy_loss(new, old, advantage, layout, chosen, weight_K=weight, **more)[0]
    assert loss.item() == pytest.approx(expected.item())


def test_options_of_the_correction():
    assert load("grpo").correction == Correction()
    assert load("grpo", {"correction": "tis"}).correction.cap == 2.0
    assert load("grpo", {"correction": {"name": "icepop", "high": 6}}).correction.high == 6
    assert load("grpo", load("grpo", {"correction": "icepop"}).model_dump()).correction.name == "icepop"
    with rejects(ValueError, "tis", "icepop", key="algorithm.correction.cap"):
        load("grpo", {"correction": {"name": "icepop", "cap": 4}})
    with rejects(ValueError, "icepop or sequence", "tis", key="algorithm.correction.low"):
        load("grpo", {"correction": {"name": "tis", "low": 0.4}})
    full = load("grpo", {"correction": {"name": "icepop"}})
    assert load("grpo", full.model_dump(mode="json")) == full
    assert (full.correction.low, full.correction.high) == (0.5, 5.0)
    assert (Correction(name="sequence").low, Correction(name="sequence").high) == (1 / 3, 3.0)
    sequence = load("grpo", {"correction": {"name": "sequence", "high": 5}})
    assert (sequence.correction.low, sequence.correction.high) == (1 / 3, 5.0)
    assert load("grpo", sequence.model_dump(mode="json")) == sequence
    with pytest.raises(ValidationError):
        Correction(name="both")
    with rejects(ValueError, "(6,)", key="logprob_sampler_K"):
        correction_weights(TRAINER, SAMPLER[1:], LAYOUT, Correction())
