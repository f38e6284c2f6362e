"""The policy loss against an implementation token by token, worked numbers, identities and invariances."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.objectives import (
    Layout,
    Normaliser,
    policy_loss,
    summary,
)
from tests.gagpo.objectives.cases import (
    CHOICES,
    GATES,
    RATIOS,
    ROW,
    TURN,
    every_objective,
    legal,
    objective,
    one_by_one,
    random_batch,
)


@pytest.mark.parametrize("ratio", RATIOS, ids="-".join)
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_every_combination_has_the_value_and_gradient_of_the_loops(ratio, gate):
    level, gradient = ratio
    for aggregation in legal(gate):
        chosen = objective(ratio=level, ratio_gradient=gradient, gate=gate, aggregation=aggregation)
        new, old, advantage = random_batch(per=None)
        loss, _ = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)
        expected = one_by_one(new, old, advantage, TURN, ROW, chosen)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), aggregation
        actual, reference = (torch.autograd.grad(value, new)[0] for value in (loss, expected))
        assert actual == pytest.approx(reference, rel=1e-9, abs=1e-12), aggregation


# Numbers worked out by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [ratio for ratio in RATIOS if ratio[0] != "token"], ids="-".join)
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_the_product_of_token_ratios_has_the_value_and_gradient_of_the_loops(ratio, gate):
    level, gradient = ratio
    for aggregation in legal(gate):
        cells = {"ratio": level, "ratio_gradient": gradient, "gate": gate, "aggregation": aggregation}
        chosen = objective(ratio_pool="sum", **cells)
        new, old, advantage = random_batch(per=None, spread=0.15)
        loss, _ = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)
        expected = one_by_one(new, old, advantage, TURN, ROW, chosen)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), aggregation
        actual, loops = (torch.autograd.grad(value, new)[0] for value in (loss, expected))
        assert actual.numpy() == pytest.approx(loops.numpy(), rel=1e-7, abs=1e-12), aggregation
        assert loss.item() != policy_loss(new, old, advantage, Layout.of(TURN, ROW), objective(**cells))[0].item()


@pytest.mark.parametrize("step", [1.0, -1.0])
def test_a_product_of_many_ratios_stays_finite(step):
    """A thousand tokens with log-ratio 1: the product, exp(1000), is not finite in float32."""
    new = torch.full((1000,), -1.0).requires_grad_()
    old = new.detach() - step
    turn, chosen = torch.zeros(1000, dtype=torch.int64), objective(ratio="action", ratio_pool="sum", gate="none")
    loss, metrics = policy_loss(new, old, torch.ones(1000), Layout.of(turn), chosen)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(new.grad).all()
    assert math.isfinite(summary([metrics])["ratio"])


def on_ratios(ratios: list[float], advantages: list[float], turn=None, row=None, **cells: Any) -> float:
    """Loss of tokens with the given ratios."""
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    new = old + torch.log(torch.tensor(ratios, dtype=torch.float64))
    turn = torch.zeros(len(ratios), dtype=torch.int64) if turn is None else torch.tensor(turn)
    layout = Layout.of(turn, turn if row is None else torch.tensor(row))
    return policy_loss(new, old, torch.tensor(advantages, dtype=torch.float64), layout, objective(**cells))[0].item()


@pytest.mark.parametrize(("advantage", "value"), [(1.0, 0.9270), (-1.0, -1.04544)])
def test_gmpo_has_its_worked_numbers(advantage, value):
    loss = on_ratios([0.5, 0.9, 1.1, 1.8], [advantage] * 4, gate="log_clip", aggregation="geometric")
    assert -loss == pytest.approx(value, abs=5e-5)


def test_token_clip_by_hand():
    # min(1.5, 1.2)*2 = 2.4 ; min(.5, .8)*2 = 1 ; A=-1: max(1.5, .8) = 1.5 -> -1.5 ; A=0: 0
    loss = on_ratios([1.5, 0.5, 1.5, 9.0], [2.0, 2.0, -1.0, 0.0], gate="clip", aggregation="token_mean")
    assert -loss == pytest.approx((2.4 + 1.0 - 1.5 + 0.0) / 4)


def test_dual_clip_by_hand():
    loss = on_ratios([9.0], [-2.0], gate={"name": "clip", "dual": 3.0})
    assert -loss == pytest.approx(-6.0)


def test_action_ratio_is_the_geometric_mean_of_its_tokens():
    # Action 0: sqrt(1.44 * 1.0) = 1.2, clipped at 1.1; action 1: 0.7 with A = -1, held at 0.8.
    loss = on_ratios(
        [1.44, 1.0, 0.7],
        [1.0, 1.0, -1.0],
        turn=[0, 0, 1],
        ratio="action",
        gate={"name": "clip", "high": 0.1},
        aggregation="action_mean",
    )
    assert -loss == pytest.approx((1.1 - 0.8) / 2)


def test_aggregations_by_hand():
    ratios, advantages, turn, row = [1.0] * 4, [1.0, 2.0, 4.0, 9.0], [0, 0, 1, 2], [0, 0, 0, 1]
    expected = {
        "token_mean": 16 / 4,
        "sequence_mean": (7 / 3 + 9) / 2,
        "action_mean": (1.5 + 4 + 9) / 3,
        "geometric": (7 / 3 + 9) / 2,
    }
    for aggregation, value in expected.items():
        assert -on_ratios(ratios, advantages, turn, row, aggregation=aggregation) == pytest.approx(value)
    constant = {"name": "constant", "length": 10}
    assert -on_ratios(ratios, advantages, turn, row, aggregation=constant) == pytest.approx(16 / 20)


def test_power_mean_by_hand():
    # ((1 + 1.21^.5)/2)^2 = (2.1/2)^2
    loss = on_ratios([1.0, 1.21], [3.0, 3.0], gate="none", aggregation={"name": "power", "exponent": 0.5})
    assert -loss == pytest.approx(3 * 1.05**2)


# Identities --------------------------------------------------------------------------------------------------------


def gradient_of(batch, chosen, **extra) -> tuple[float, torch.Tensor]:
    new, old, advantage = batch
    loss, _ = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen, **extra)
    return loss.item(), torch.autograd.grad(loss, new)[0]


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-9)
    assert one[1] == pytest.approx(other[1], rel=1e-9, abs=1e-12)


def test_power_mean_with_exponent_one_is_grpo_with_the_asymmetric_clip():
    gate = {"name": "clip", "low": 0.2, "high": 0.4}
    batch = random_batch(per=ROW)
    power = objective(gate=gate, aggregation={"name": "power", "exponent": 1.0})
    assert_same(gradient_of(batch, power), gradient_of(batch, objective(gate=gate, aggregation="sequence_mean")))


def test_power_mean_tends_to_the_geometric_mean():
    batch = random_batch(per=ROW, spread=0.05)
    power = gradient_of(batch, objective(gate="none", aggregation={"name": "power", "exponent": 0.05}))
    geometric = gradient_of(batch, objective(gate="none", aggregation="geometric"))
    assert power[0] == pytest.approx(geometric[0], abs=1e-3)
    assert power[1] == pytest.approx(geometric[1], abs=1e-3)


def test_gspo_equals_gspo_token_where_the_advantage_is_constant():
    gate = {"name": "clip", "low": 3e-4, "high": 4e-4}
    for spread in (1e-4, 0.4):
        batch = random_batch(per=ROW, spread=spread)
        cells = {"ratio": "sequence", "gate": gate, "aggregation": "sequence_mean"}
        assert_same(
            gradient_of(batch, objective(**cells)), gradient_of(batch, objective(**cells, ratio_gradient="token"))
        )


def test_all_levels_agree_where_actions_and_rows_have_one_token():
    ids = torch.arange(len(TURN))
    new, old, advantage = random_batch()
    values = [
        policy_loss(new, old, advantage, Layout.of(ids, ids), objective(ratio=ratio, aggregation=aggregation))[0].item()
        for ratio in ("token", "action", "sequence")
        for aggregation in ("token_mean", "sequence_mean", "action_mean", "geometric", "power")
    ]
    assert values == pytest.approx([values[0]] * len(values))


@pytest.mark.parametrize("gate", ["clip", "log_clip", "none"])
def test_on_policy_every_gate_is_the_policy_gradient(gate):
    new, _, advantage = random_batch()
    loss, metrics = policy_loss(new, new.detach(), advantage, Layout.of(TURN, ROW), objective(gate=gate))
    assert loss.item() == pytest.approx(-advantage.mean().item())
    assert torch.autograd.grad(loss, new)[0] == pytest.approx(-advantage / len(advantage))
    assert summary([metrics])["ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_no_advantage_gives_no_loss_and_no_gradient(gate):
    for chosen in every_objective(gate):
        new, old, advantage = random_batch()
        value, gradient = gradient_of((new, old, torch.zeros_like(advantage)), chosen)
        assert value == 0.0
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("gate", GATES, ids=str)
@pytest.mark.parametrize("far", [400.0, -400.0])
def test_extreme_log_ratios_stay_finite_in_single_precision(gate, far):
    for chosen, advantage in itertools.product(every_objective(gate, kl={"coefficient": 0.1}), (1.0, -1.0)):
        new, old = torch.full((13,), -1.0 + far, requires_grad=True), torch.full((13,), -1.0)
        loss, metrics = policy_loss(
            new, old, torch.full((13,), advantage), Layout.of(TURN, ROW), chosen, ref_logprob_K=old
        )
        (gradient,) = torch.autograd.grad(loss, new)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert all(math.isfinite(value) for value in summary([metrics]).values())


# Invariances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_order_and_names_of_tokens_and_segments_do_not_matter(chosen, data):
    new, old, advantage = random_batch(data.draw(st.integers(0, 99)))
    order = torch.tensor(data.draw(st.permutations(range(len(TURN)))))
    names = torch.tensor(data.draw(st.lists(st.integers(-(10**9), 10**9), min_size=10, max_size=10, unique=True)))
    straight = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)[0]
    shuffled = policy_loss(
        new[order], old[order], advantage[order], Layout.of(names[TURN[order]], names[ROW[order]]), chosen
    )[0]
    assert shuffled.item() == pytest.approx(straight.item(), rel=1e-9)
    assert torch.autograd.grad(shuffled, new)[0] == pytest.approx(torch.autograd.grad(straight, new)[0], abs=1e-12)


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_micro_batches_add_up_to_the_mini_batch(chosen, data):
    chosen = chosen.model_copy(update={"kl": objective(kl={"coefficient": 0.3}).kl, "entropy": 0.1})
    new, old, advantage = random_batch(data.draw(st.integers(0, 99)))
    ref, entropy = old + 0.1, (new * new + 1).detach().requires_grad_()
    micro_of_row = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)))
    micro = micro_of_row[ROW]
    full, whole_metrics = policy_loss(
        new, old, advantage, Layout.of(TURN, ROW), chosen, ref_logprob_K=ref, entropy_K=entropy
    )
    expected = torch.autograd.grad(full, (new, entropy))
    layouts = [Layout.of(TURN[micro == segment], ROW[micro == segment]) for segment in sorted(set(micro.tolist()))]
    normaliser = Normaliser.total(layout.normaliser for layout in layouts)
    assert normaliser == Layout.of(TURN, ROW).normaliser
    total, segments = torch.zeros((), dtype=torch.float64), []
    for segment, layout in zip(sorted(set(micro.tolist())), layouts, strict=True):
        actual = micro == segment
        loss, metrics = policy_loss(
            new[actual],
            old[actual],
            advantage[actual],
            layout,
            chosen,
            normaliser,
            ref_logprob_K=ref[actual],
            entropy_K=entropy[actual],
        )
        total, segments = total + loss, [*segments, metrics]
    assert total.item() == pytest.approx(full.item(), rel=1e-12)
    for actual, reference in zip(torch.autograd.grad(total, (new, entropy)), expected, strict=True):
        assert actual == pytest.approx(reference, rel=1e-12, abs=1e-15)
    assert summary(segments) == pytest.approx(summary([whole_metrics]))
