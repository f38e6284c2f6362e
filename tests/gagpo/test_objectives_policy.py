"""The policy loss against an implementation token by token, worked numbers, identities and invariances."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.objectives import (
    Controls,
    Layout,
    Normaliser,
    ObjectiveSettings,
    find_nonfinite,
    kl_divergence,
    policy_loss,
    summary,
)

RATIOS = [("token", "mean", "segment")] + [
    (level, pool, gradient)
    for level in ("action", "sequence")
    for pool in ("mean", "sum")
    for gradient in ("segment", "token")
]
GATES = ["clip", {"name": "clip", "high": 0.28, "dual": 1.5}, "log_clip", "sapo", "cispo", "none"]
AGGREGATIONS = [
    "token_mean",
    "sequence_mean",
    "action_mean",
    {"name": "constant", "length": 7},
    "geometric",
    {"name": "geometric", "per": "action"},
    {"name": "power", "exponent": 0.6},
    {"name": "power", "exponent": 0.6, "per": "action"},
]
TURN = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5])
ROW = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3])


def objective(**cells: Any) -> ObjectiveSettings:
    return ObjectiveSettings.model_validate(cells)


def random_batch(seed: int = 0, spread: float = 0.4, per: torch.Tensor | None = TURN):
    generator = torch.Generator().manual_seed(seed)
    tokens = len(TURN)
    new = -2 * torch.rand(tokens, generator=generator, dtype=torch.float64)
    old = new + spread * torch.randn(tokens, generator=generator, dtype=torch.float64)
    advantage = torch.randn(tokens, generator=generator, dtype=torch.float64)
    if per is not None:
        advantage = advantage[per]
    return new.requires_grad_(), old, advantage


def one_by_one(new, old, advantage, turn, row, chosen: ObjectiveSettings) -> torch.Tensor:
    """The objective as papers write it: loops over sequences, actions and tokens, ratios not in logarithms."""
    tokens = range(len(new))
    segment = {"token": torch.arange(len(new)), "action": turn, "sequence": row}[chosen.ratio]

    def members(ids, of):
        return [k for k in tokens if ids[k] == ids[of]]

    def ratio(k):
        logs = [new[j] - old[j] for j in members(segment, k)]
        value = sum(logs) / (len(logs) if chosen.ratio_pool == "mean" else 1)
        if chosen.ratio_gradient == "token":
            return torch.exp(value.detach()) * torch.exp(new[k]) / torch.exp(new[k]).detach()
        return torch.exp(value)

    def gated(k, a):
        """Value at token k whose advantage is a."""
        r, gate = ratio(k), chosen.gate
        if gate.name == "clip":
            value = torch.minimum(r * a, torch.clamp(r, 1 - gate.low, 1 + gate.high) * a)
            return torch.maximum(value, gate.dual * a) if gate.dual and a < 0 else value
        if gate.name == "log_clip":
            sign, log = torch.sign(a), torch.log(r)
            return a * torch.exp(sign * torch.minimum(sign * log, sign * torch.clamp(log, -gate.low, gate.high)))
        if gate.name == "sapo":
            tau = gate.positive if a > 0 else gate.negative
            return a * 4 / tau * torch.sigmoid(tau * (r - 1))
        if gate.name == "cispo":
            return torch.clamp(r, max=1 + gate.high).detach() * a * new[k]
        return r * a

    def mean_of(ids, inner):
        groups = [[k for k in tokens if ids[k] == g] for g in sorted(set(ids.tolist()))]
        return sum(inner(group) for group in groups) / len(groups)

    aggregation = chosen.aggregation
    if aggregation.name == "token_mean":
        return -sum(gated(k, advantage[k]) for k in tokens) / len(new)
    if aggregation.name == "constant":
        return -sum(gated(k, advantage[k]) for k in tokens) / (len(set(row.tolist())) * aggregation.length)
    if aggregation.name in ("sequence_mean", "action_mean"):
        ids = row if aggregation.name == "sequence_mean" else turn
        return -mean_of(ids, lambda group: sum(gated(k, advantage[k]) for k in group) / len(group))

    def special_mean(group):
        a = sum(advantage[k] for k in group) / len(group)
        coefficients = [gated(k, a) / a for k in group]
        if aggregation.name == "geometric":
            return a * torch.prod(torch.stack(coefficients)) ** (1 / len(group))
        p = aggregation.exponent
        return a * (sum(c**p for c in coefficients) / len(group)) ** (1 / p)

    return -mean_of(row if aggregation.per == "sequence" else turn, special_mean)


def legal(gate: Any) -> list[Any]:
    """The aggregations that go with a gate: CISPO's values are negative, and no such mean of them exists."""
    return [
        cell for cell in AGGREGATIONS if gate != "cispo" or ("geometric" not in str(cell) and "power" not in str(cell))
    ]


def every_objective(gate: Any, **more: Any) -> Iterator[ObjectiveSettings]:
    for (level, pool, gradient), aggregation in itertools.product(RATIOS, legal(gate)):
        yield objective(
            ratio=level, ratio_pool=pool, ratio_gradient=gradient, gate=gate, aggregation=aggregation, **more
        )


@pytest.mark.parametrize("ratio", RATIOS, ids="-".join)
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_every_combination_has_the_value_and_gradient_of_the_loops(ratio, gate):
    level, pool, gradient = ratio
    for aggregation, per in itertools.product(legal(gate), (TURN, None)):
        chosen = objective(ratio=level, ratio_pool=pool, ratio_gradient=gradient, gate=gate, aggregation=aggregation)
        new, old, advantage = random_batch(per=per)
        loss, _ = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)
        expected = one_by_one(new, old, advantage, TURN, ROW, chosen)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), aggregation
        mine, theirs = (torch.autograd.grad(value, new)[0] for value in (loss, expected))
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12), aggregation


# Numbers worked out by hand ----------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("far", [20.0, -20.0, 400.0, -400.0])
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

CHOICES = [
    objective(gate="clip", aggregation="token_mean"),
    objective(ratio="action", gate="clip", aggregation="action_mean"),
    objective(ratio="sequence", gate="sapo", aggregation="sequence_mean"),
    objective(ratio="sequence", ratio_gradient="token", aggregation={"name": "constant", "length": 9}),
    objective(gate="cispo", aggregation="sequence_mean"),
    objective(gate="log_clip", aggregation="geometric"),
    objective(gate="clip", aggregation={"name": "power", "exponent": 0.5, "per": "action"}),
]


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
@settings(deadline=None, max_examples=25)
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
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_micro_batches_add_up_to_the_mini_batch(chosen, data):
    chosen = chosen.model_copy(update={"kl": objective(kl={"coefficient": 0.3}).kl, "entropy": 0.1})
    new, old, advantage = random_batch(data.draw(st.integers(0, 99)))
    ref, entropy = old + 0.1, (new * new + 1).detach().requires_grad_()
    micro_of_row = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)))
    micro = micro_of_row[ROW]
    whole, whole_metrics = policy_loss(
        new, old, advantage, Layout.of(TURN, ROW), chosen, ref_logprob_K=ref, entropy_K=entropy
    )
    expected = torch.autograd.grad(whole, (new, entropy))
    layouts = [Layout.of(TURN[micro == part], ROW[micro == part]) for part in sorted(set(micro.tolist()))]
    normaliser = Normaliser.total(layout.normaliser for layout in layouts)
    assert normaliser == Layout.of(TURN, ROW).normaliser
    total, parts = torch.zeros((), dtype=torch.float64), []
    for part, layout in zip(sorted(set(micro.tolist())), layouts, strict=True):
        mine = micro == part
        loss, metrics = policy_loss(
            new[mine],
            old[mine],
            advantage[mine],
            layout,
            chosen,
            normaliser,
            ref_logprob_K=ref[mine],
            entropy_K=entropy[mine],
        )
        total, parts = total + loss, [*parts, metrics]
    assert total.item() == pytest.approx(whole.item(), rel=1e-12)
    for mine, theirs in zip(torch.autograd.grad(total, (new, entropy)), expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12, abs=1e-15)
    assert summary(parts) == pytest.approx(summary([whole_metrics]))


# KL, entropy, metrics, controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) + 0.5 - 1)])
def test_kl_estimators_by_hand(estimator, value):
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    kl = kl_divergence(logp, torch.tensor([-1.5], dtype=torch.float64), estimator)
    assert kl.item() == pytest.approx(value)


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
    assert logged["old_kl"] == pytest.approx(-math.log(1.5 * 1.5 * 0.5 * 1.1) / 4, rel=1e-5)


def test_metrics_of_actions_are_per_action():
    new, old, advantage = random_batch()
    chosen = objective(ratio="action", gate={"name": "clip", "low": 1e-3, "high": 1e-3})
    _, metrics = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen)
    pooled = torch.stack([(new - old)[turn == TURN].mean() for turn in range(6)]).detach()
    sign = torch.stack([advantage[turn == TURN][0] for turn in range(6)])
    logged = summary([metrics])
    assert logged["clip_high"] == pytest.approx(((pooled > math.log1p(1e-3)) & (sign > 0)).float().mean().item())
    assert logged["clip_low"] == pytest.approx(((pooled < math.log1p(-1e-3)) & (sign < 0)).float().mean().item())
    assert logged["log_ratio_rms"] == pytest.approx(pooled.square().mean().sqrt().item())


@pytest.mark.parametrize("ratio", ["token", "action", "sequence"])
@pytest.mark.parametrize("gate", ["clip", {"name": "clip", "dual": 3.0}, "log_clip", "cispo"])
def test_radii_per_group_act_as_one_loss_per_group(ratio, gate):
    new, old, advantage = random_batch()
    chosen = objective(ratio=ratio, gate=gate, aggregation="action_mean")
    group = (ROW >= 2).long()
    radius = torch.tensor([0.05, 0.3])
    controls = Controls(clip_low=radius[group], clip_high=radius[group])
    together = policy_loss(new, old, advantage, Layout.of(TURN, ROW), chosen, controls=controls)[0]
    apart = sum(
        policy_loss(
            new[group == g],
            old[group == g],
            advantage[group == g],
            Layout.of(TURN[group == g], ROW[group == g]),
            chosen,
            Layout.of(TURN, ROW).normaliser,
            Controls(clip_low=float(radius[g]), clip_high=float(radius[g])),
        )[0]
        for g in (0, 1)
    )
    assert together.item() == pytest.approx(apart.item(), rel=1e-6)


def test_exponents_per_group_act_as_one_loss_per_group():
    new, old, advantage = random_batch(per=ROW)
    chosen = objective(aggregation="power")
    group = (ROW >= 2).long()
    exponent = torch.tensor([0.5, 0.9])
    together = policy_loss(
        new, old, advantage, Layout.of(TURN, ROW), chosen, controls=Controls(exponent=exponent[group])
    )[0]
    apart = sum(
        policy_loss(
            new[group == g],
            old[group == g],
            advantage[group == g],
            Layout.of(TURN[group == g], ROW[group == g]),
            chosen,
            Layout.of(TURN, ROW).normaliser,
            Controls(exponent=float(exponent[g])),
        )[0]
        for g in (0, 1)
    )
    assert together.item() == pytest.approx(apart.item(), rel=1e-6)


def test_half_precision_log_probabilities_are_computed_in_single_precision():
    new, old, advantage = random_batch()
    halved = new.detach().bfloat16().requires_grad_()
    loss, _ = policy_loss(halved, old.bfloat16(), advantage.float(), Layout.of(TURN, ROW), objective(ratio="action"))
    loss.backward()
    assert loss.dtype == torch.float32
    assert halved.grad.dtype == torch.bfloat16


# Bad input -----------------------------------------------------------------------------------------------------------


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="no response tokens"):
        Layout.of(torch.zeros(0, dtype=torch.int64))


def test_ids_must_be_flat_integers_of_one_length():
    with pytest.raises(ValueError, match="equally long"):
        Layout.of(TURN, ROW[1:])
    with pytest.raises(ValueError, match="equally long"):
        Layout.of(TURN[None], ROW[None])
    with pytest.raises(ValueError, match="integers"):
        Layout.of(TURN.float(), ROW)


def test_missing_or_misshapen_columns_are_named():
    new, old, advantage = random_batch()
    layout = Layout.of(TURN, ROW)
    with pytest.raises(ValueError, match=r"advantage_K must have shape \(13,\)"):
        policy_loss(new, old, advantage[1:], layout, objective())
    with pytest.raises(ValueError, match="ref_logprob_K"):
        policy_loss(new, old, advantage, layout, objective(kl={"coefficient": 0.1}))
    with pytest.raises(ValueError, match="entropy_K"):
        policy_loss(new, old, advantage, layout, objective(entropy=0.1))


@pytest.mark.parametrize("chosen", CHOICES, ids=range(len(CHOICES)))
@pytest.mark.parametrize("column", [0, 1, 2])
def test_nan_is_never_hidden(chosen, column):
    batch = [tensor.detach().clone() for tensor in random_batch()]
    batch[column][5] = math.nan
    loss, _ = policy_loss(*batch, Layout.of(TURN, ROW), chosen)
    assert math.isnan(loss.item())
    names = ("logprob_K", "old_logprob_K", "advantage_K")
    message, rows = find_nonfinite(Layout.of(TURN, ROW), **dict(zip(names, batch, strict=True)))
    assert names[column] in message
    assert "token 5" in message
    assert rows == [1]


def test_finite_tensors_are_found_so():
    new, old, _ = random_batch()
    assert find_nonfinite(Layout.of(TURN, ROW), new=new, old=old) is None
