"""KL, entropy, metrics, bounds per group, and bad input of the policy loss."""

import math

import pytest
import torch

from gagpo.objectives import Controls, Layout, find_nonfinite, kl_divergence, policy_loss, summary
from tests.gagpo.objectives.cases import CHOICES, ROW, TURN, objective, random_batch
from tests.rejections import rejects


def test_kl_by_hand():
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    kl = kl_divergence(logp, torch.tensor([-1.5], dtype=torch.float64))
    assert kl.item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_estimator_is_its_formula_in_value_and_gradient(estimator):
    formulas = {
        "k1": (lambda x: x, lambda x: 1.0),
        "k2": (lambda x: x * x / 2, lambda x: x),
        "k3": (lambda x: math.exp(-x) + x - 1, lambda x: 1 - math.exp(-x)),
    }
    value, slope = formulas[estimator]
    new, old, advantage = random_batch()
    apart = [0.0, -0.4, 1.7, 3.0, -2.5, *[0.1 * k for k in range(len(new) - 5)]]
    ref = new.detach() - torch.tensor(apart, dtype=torch.float64)
    chosen = objective(kl={"coefficient": 0.3, "estimator": estimator})
    loss, metrics = policy_loss(new, old, 0 * advantage, Layout.of(TURN, ROW), chosen, ref_logprob_K=ref)
    assert loss.item() == pytest.approx(0.3 * sum(value(x) for x in apart) / len(apart))
    gradient = torch.autograd.grad(loss, new)[0]
    assert gradient.tolist() == pytest.approx([0.3 * slope(x) / len(apart) for x in apart])
    assert summary([metrics])["kl"] == pytest.approx(sum(value(x) for x in apart) / len(apart))


@pytest.mark.parametrize(("estimator", "expected"), [("k1", [-10, 10]), ("k2", [10, 10]), ("k3", [10, 10])])
def test_a_kl_estimate_is_bounded_and_nan_stays_nan(estimator, expected):
    logp = torch.tensor([-30.0, -1.0, math.nan, -math.inf], requires_grad=True)
    kl = kl_divergence(logp, torch.tensor([-1.0, -30.0, -1.0, -1.0]), estimator)
    assert kl[:2].tolist() == expected
    assert torch.isnan(kl[2:]).all()


def test_kl_is_averaged_as_the_objective_is():
    new, old, advantage = random_batch()
    ref = old - 0.3
    layout = Layout.of(TURN, ROW)
    bare = policy_loss(new, old, advantage, layout, objective(aggregation="sequence_mean"))[0]
    chosen = objective(aggregation="sequence_mean", kl={"coefficient": 0.5})
    loss, metrics = policy_loss(new, old, advantage, layout, chosen, ref_logprob_K=ref)
    kl = kl_divergence(new, ref)
    rows = torch.stack([kl[row == ROW].mean() for row in range(4)])
    assert (loss - bare).item() == pytest.approx(0.5 * rows.mean().item())
    assert summary([metrics])["kl"] == pytest.approx(kl.mean().item())


def test_entropy_is_rewarded():
    new, old, advantage = random_batch()
    entropy = torch.full_like(old, 2.0)
    layout = Layout.of(TURN, ROW)
    bare = policy_loss(new, old, advantage, layout, objective())[0]
    loss, metrics = policy_loss(new, old, advantage, layout, objective(entropy=0.1), entropy_K=entropy)
    assert (loss - bare).item() == pytest.approx(-0.2)
    assert summary([metrics])["entropy"] == pytest.approx(2.0)


def test_metrics_count_what_was_clipped():
    old = torch.full((4,), -1.0)
    new = old + torch.log(torch.tensor([1.5, 1.5, 0.5, 1.1]))
    _, metrics = policy_loss(new, old, torch.tensor([1.0, -1.0, -1.0, 0.0]), Layout.of(torch.arange(4)), objective())
    logged = summary([metrics])
    assert logged["clip_high"] == pytest.approx(1 / 4)
    assert logged["clip_low"] == pytest.approx(1 / 4)
    assert logged["clip"] == pytest.approx(1 / 2)
    assert logged["ratio"] == pytest.approx((1.5 + 1.5 + 0.5 + 1.1) / 4)
    assert logged["approx_kl"] == pytest.approx(-math.log(1.5 * 1.5 * 0.5 * 1.1) / 4, rel=1e-5)


def test_metrics_of_actions_are_per_action():
    new, old, advantage = random_batch()
    chosen = objective(ratio="action", gate={"name": "clip", "low": 1e-3, "high": 1e-3})
    _, metrics = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)
    pooled = torch.stack([(new - old)[turn == TURN].mean() for turn in range(6)]).detach()
    symbol = torch.stack([advantage[turn == TURN][0] for turn in range(6)])
    logged = summary([metrics])
    assert logged["clip_high"] == pytest.approx(((pooled > math.log1p(1e-3)) & (symbol > 0)).float().mean().item())
    assert logged["clip_low"] == pytest.approx(((pooled < math.log1p(-1e-3)) & (symbol < 0)).float().mean().item())
    assert logged["log_ratio_rms"] == pytest.approx(pooled.square().mean().sqrt().item())


RADII = {"clip_low": [0.05, 0.3], "clip_high": [0.05, 0.3]}
BY_GROUP = [
    ({"ratio": ratio, "gate": gate, "aggregation": "action_mean"}, RADII, TURN)
    for ratio in ("token", "action", "sequence")
    for gate in ("clip", {"name": "clip", "dual": 3.0}, "log_clip", "cispo")
]


@pytest.mark.parametrize(("cells", "values", "per"), BY_GROUP)
def test_controls_per_group_act_as_one_loss_per_group(cells, values, per):
    new, old, advantage = random_batch(per=per)
    chosen, group, full = objective(**cells), (ROW >= 2).long(), Layout.of(TURN, ROW)
    controls = Controls(**{name: torch.tensor(value)[group] for name, value in values.items()})
    together = policy_loss(new, old, advantage, full, chosen, controls=controls)[0]
    apart = 0.0
    for g in (0, 1):
        reference, item = group == g, Controls(**{name: value[g] for name, value in values.items()})
        columns = (new[reference], old[reference], advantage[reference], Layout.of(TURN[reference], ROW[reference]))
        apart += policy_loss(*columns, chosen, full.normaliser, item)[0].item()
    assert together.item() == pytest.approx(apart, rel=1e-6)


def test_half_precision_log_probabilities_are_computed_in_single_precision():
    new, old, advantage = random_batch()
    halved = new.detach().bfloat16().requires_grad_()
    loss, _ = policy_loss(halved, old.bfloat16(), advantage.float(), Layout.of(TURN, ROW), objective(ratio="action"))
    loss.backward()
    assert loss.dtype == torch.float32
    assert halved.grad.dtype == torch.bfloat16


# Bad input -----------------------------------------------------------------------------------------------------------


def test_an_empty_batch_is_refused():
    with rejects(ValueError, "response tokens"):
        Layout.of(torch.zeros(0, dtype=torch.int64))


def test_ids_must_be_flat_integers_of_one_length():
    with rejects(ValueError, key="turn_K"):
        Layout.of(TURN, ROW[1:])
    with rejects(ValueError, key="turn_K"):
        Layout.of(TURN[None], ROW[None])
    with rejects(ValueError, key="segment"):
        Layout.of(TURN.float(), ROW)


def test_turns_may_be_counted_per_row():
    per_row = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0])
    restarting, continuing = Layout.of(per_row, ROW), Layout.of(TURN, ROW)
    assert restarting.normaliser == continuing.normaliser
    new, old, advantage = random_batch()
    for chosen in (objective(ratio="action", aggregation="action_mean"), objective(aggregation={"name": "geometric"})):
        losses = [policy_loss(new, old, advantage, layout, chosen)[0].item() for layout in (restarting, continuing)]
        assert losses[0] == losses[1]


def test_missing_or_misshapen_columns_are_named():
    new, old, advantage = random_batch()
    layout = Layout.of(TURN, ROW)
    with rejects(ValueError, "(13,)", key="advantage_K"):
        policy_loss(new, old, advantage[1:], layout, objective())
    with rejects(ValueError, "ref_logprob_K", key="kl.coefficient"):
        policy_loss(new, old, advantage, layout, objective(kl={"coefficient": 0.1}))
    with rejects(ValueError, key="entropy_K"):
        policy_loss(new, old, advantage, layout, objective(entropy=0.1))


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_inputs_are_not_hidden(chosen, column, value):
    batch = [tensor.detach().clone() for tensor in random_batch()]
    batch[column][5] = value
    loss, _ = policy_loss(*batch, Layout.of(TURN, ROW), chosen)
    assert not math.isfinite(loss.item())
    names = ("logprob_K", "old_logprob_K", "advantage_K")
    message, rows = find_nonfinite(Layout.of(TURN, ROW), **dict(zip(names, batch, strict=True)))
    assert names[column] in message
    assert "token 5" in message
    assert rows == [1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_reference_is_not_hidden(value):
    new, old, advantage = random_batch()
    reference = old.clone()
    reference[2] = value
    chosen = objective(kl={"coefficient": 0.1})
    loss, _ = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen, ref_logprob_K=reference)
    assert math.isnan(loss.item())


def test_finite_tensors_are_found_so():
    new, old, _ = random_batch()
    assert find_nonfinite(Layout.of(TURN, ROW), new=new, old=old) is None
