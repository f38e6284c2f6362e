"""Shared prefixes are read once and rows without a gradient not at all, with the same update."""

import copy

import numpy as np
import pytest
import torch

from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import build_rows
from gagpo.learning.packing import Packing, mini_batches
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.networks import Critic, Networks
from gagpo.objectives import Correction
from tests.gagpo.learning.test_batch import conversation

# One for each level of credit and ratio, gate, aggregation and critic.
KINDS = ["gagpo", "gspo", "dapo", "dppo", "gmpo", "apmpo", "sapo", "cispo", "ppo", "ppo_turn"]
WAYS = [Packing(60, trees=True), Packing(60, trees=True, rounded=True), Packing(60, rounded=True), Packing(10**6, True)]


@pytest.fixture(scope="module")
def rows():
    """Four groups of three tries: a first turn in common, often a second, and one try that is another's beginning."""
    rng = np.random.default_rng(1)
    episodes = []
    for group in range(4):
        prompt, first = rng.integers(5, 99, 9), rng.integers(5, 99, 4)
        second = np.concatenate([prompt, first, rng.integers(5, 99, 5)])
        messages = [rng.integers(5, 99, 4) for _ in range(2)]
        tries = [conversation((prompt, first), (second, message)) for message in messages]
        tries.append(
            conversation((prompt, first), (second, messages[0])) if group % 2 else conversation((prompt, first))
        )
        for message in tries:
            message.group = group
        episodes += tries
    return build_rows(episodes)


def credit_of(rows, level, silent=()):
    """Random advantages; none in the groups of ``silent``."""
    tokens, turns = (1 + max(int(getattr(row, name)[-1]) for row in rows) for name in ("token_K", "turn_K"))
    rng = np.random.default_rng(2)
    advantage = rng.normal(size=tokens if level == "token" else turns)
    for row in rows:
        if row.group in silent:
            advantage[row.token_K if level == "token" else row.turn_K] = 0.0
    return Credit(advantage, np.full(turns, 4), level)


def updated(model, rows, algorithm, credit, packing, **more):
    """Weights after two epochs of two mini-batches, the metrics, and the ratios."""
    model = copy.deepcopy(model)
    critic = Critic(model) if algorithm.critic else None
    if critic is not None:
        values = np.zeros(credit.tokens)
        credit = Credit(credit.advantage, credit.tokens_N, credit.level, credit.advantage + 1, {}, values)
    parameters = [*model.parameters(), *(critic.parameters() if critic else ())]
    reference = copy.deepcopy(model) if algorithm.kl.coefficient > 0 else None
    settings = UpdateSettings(**{"epochs": 2, "minibatches": 2, **more}, packing=packing)
    networks = Networks(model, critic, reference)
    updater = Updater(networks, torch.optim.SGD(parameters, lr=0.05), algorithm, settings)
    metrics = updater.update(rows, credit, np.random.default_rng(3))
    metrics.pop("train_tokens_per_second", None)
    return torch.cat([p.detach().flatten() for p in parameters]), metrics, updater.ratio_K


@pytest.mark.parametrize("name", KINDS)
def test_packing_does_not_change_any_algorithm(tiny, rows, name):
    algorithm = load_algorithm(name).resolved(16)
    credit = credit_of(rows, algorithm.credit.level)
    weights, metrics, ratio_K = updated(tiny[0], rows, algorithm, credit, Packing(60))
    for way in WAYS[:2]:
        other, results, ratios = updated(tiny[0], rows, algorithm, credit, way)
        torch.testing.assert_close(other, weights, rtol=0, atol=1e-6)
        np.testing.assert_allclose(ratios, ratio_K, rtol=1e-5)
        read = results.pop("train_tokens_read"), metrics["train_tokens_read"]
        assert read[0] < read[1]
        assert {key: pytest.approx(metrics[key], rel=1e-4, abs=1e-6) for key in results} == results


@pytest.mark.parametrize(
    ("correction", "way"), list(zip(["none", "recompute", "tis", "icepop"], WAYS, strict=True)), ids=range(4)
)
def test_packing_does_not_change_any_correction(tiny, rows, correction, way):
    algorithm = load_algorithm("gspo").model_copy(update={"correction": Correction(name=correction)})
    credit = credit_of(rows, "turn")
    expected, got = (updated(tiny[0], rows, algorithm, credit, p, epochs=1)[0] for p in (Packing(60), way))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gagpo", "gspo", "dapo", "gmpo", "ppo_turn"])
@pytest.mark.parametrize("silent", [(1,), (0, 1, 2, 3)])
def test_rows_without_advantage_are_not_read(tiny, rows, name, silent, monkeypatch):
    """Their tokens, turns and rows still count in the mean; a mini-batch without other rows takes no step."""
    algorithm = load_algorithm(name).resolved(16)
    algorithm = algorithm.model_copy(
        update={"kl": algorithm.kl.model_copy(update={"coefficient": 0.0}), "entropy": 0.0}
    )
    credit = credit_of(rows, algorithm.credit.level, silent)
    weights, metrics, ratio_K = updated(tiny[0], rows, algorithm, credit, Packing(60, trees=True))
    chosen = Updater._rows_with_gradient
    monkeypatch.setattr(Updater, "_rows_with_gradient", lambda *given: given[1] if chosen(*given) else [])
    full, plain, ratios = updated(tiny[0], rows, algorithm, credit, Packing(60, trees=True))
    torch.testing.assert_close(weights, full, rtol=0, atol=1e-6)
    taught = 0 if len(silent) == 4 and algorithm.critic is None else 4
    assert metrics["updates"] == plain["updates"] == taught
    if not taught:
        assert torch.equal(weights, torch.cat([p.detach().flatten() for p in tiny[0].parameters()]))
        return
    assert metrics["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    if algorithm.critic is None:
        trained = np.concatenate([row.token_K for row in rows if row.group not in silent] or [np.zeros(0, int)])
        assert np.delete(ratio_K, trained).tolist() == [1.0] * (len(ratio_K) - len(trained))
        np.testing.assert_allclose(ratio_K[trained], ratios[trained], rtol=1e-5)


def test_weights_do_not_move_without_a_gradient(tiny, rows):
    """Adam remembers earlier gradients, and would go on by them."""
    model, algorithm = copy.deepcopy(tiny[0]), load_algorithm("grpo")
    algorithm = algorithm.model_copy(update={"kl": algorithm.kl.model_copy(update={"coefficient": 0.0})})
    updater = Updater(
        Networks(model), torch.optim.AdamW(model.parameters(), lr=1e-3), algorithm, UpdateSettings(minibatches=2)
    )
    updater.update(rows, credit_of(rows, "turn"), np.random.default_rng(3))
    before = updater.weights()
    metrics = updater.update(rows, credit_of(rows, "turn", (0, 1, 2, 3)), np.random.default_rng(3))
    assert metrics["updates"] == 0 and all(map(torch.equal, updater.weights(), before))


def test_equal_predictions_are_computed_once(rows):
    (batch,) = Packing(10**6, trees=True).micro_batches(rows)
    assert len(batch.keep_U) < len(batch.token_K) and batch.prediction_K is not None
    spelled = {
        int(token): int(word) for row in rows for token, word in zip(row.token_K, row.ids[row.position_K], strict=True)
    }
    assert batch.per_token(batch.target_U).tolist() == [spelled[token] for token in batch.token_K.tolist()]


def test_different_temperatures_are_predicted_separately(rows):
    from dataclasses import replace

    mixed = [replace(row, temperature=1.0 + (number % 2)) for number, row in enumerate(rows)]
    (batch,) = Packing(10**6, trees=True).micro_batches(mixed)
    assert batch.prediction_K is None and len(batch.keep_U) == len(batch.token_K) == len(batch.temperature_U)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_mini_batches_contain_whole_groups(rows, count):
    segments = [
        {row.group for row in mini_batche} for mini_batche in mini_batches(rows, count, np.random.default_rng(0))
    ]
    assert len(segments) == count and sorted(group for mini_batche in segments for group in mini_batche) == [0, 1, 2, 3]


def test_with_few_groups_rows_are_split(rows):
    segments = list(mini_batches(rows, 5, np.random.default_rng(0)))
    assert sum(map(len, segments)) == len(rows) and {len(segment) for segment in segments} <= {2, 3}
