"""Steps that go too far are shortened, and the learning rate with them."""

import math
from statistics import fmean

import numpy as np
import pytest
import torch

from gagpo.controllers import Controllers, TrustRegion
from gagpo.learning.update import divergence
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train
from tests.rejections import rejects

TARGET = 0.05


def test_divergence_estimates_the_kl_of_two_distributions():
    """Sampled from the old one, k3 has the mean KL(old || new)."""
    old, new = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    drawn = np.repeat(np.arange(3), [5000, 3000, 2000])
    exact = float((old * (old / new).log()).sum())
    assert divergence((new / old).log().numpy()[drawn]) == pytest.approx(exact, abs=1e-6)
    assert divergence(np.zeros(3)) == divergence(np.zeros(0)) == 0.0


def bounded(one, seen, *measured):
    """Bound a step with these divergences, one after another; the parts that were kept."""
    segments, results = [], iter(measured)
    one.bound(seen, lambda: next(results), segments.append)
    return segments


def test_a_step_that_stays_near_is_not_measured():
    trust_region = TrustRegion(TARGET)
    assert bounded(trust_region, TARGET / 17) == [] and trust_region.kl is None
    for observed in (TARGET / 15, None, math.nan):
        assert bounded(trust_region, observed, 1.4 * TARGET) == [] and trust_region.kl == 1.4 * TARGET


@pytest.mark.parametrize("steps", [2, 3, 4, 16])
def test_equal_steps_beyond_the_target_are_measured(steps):
    """The free estimate averages what each step read, the first of them an unchanged policy."""
    divergences = np.arange(steps + 1.0) ** 2 / steps**2 * 1.6 * TARGET
    assert bounded(TrustRegion(TARGET), divergences[:-1].mean(), divergences[-1], TARGET) != []


def test_a_step_is_shortened_by_the_root_and_the_rate_with_it():
    trust_region = TrustRegion(TARGET)
    assert bounded(trust_region, None, 4 * TARGET, 1.2 * TARGET) == [pytest.approx(0.5)]
    assert trust_region.scale == pytest.approx(0.5)
    assert trust_region.values() == {"lr_scale": 0.5, "target_kl_scale": 0.5, "step_kl": pytest.approx(4 * TARGET)}
    scales = []
    for _ in range(5):  # iterations that stay near
        bounded(trust_region, 0.0)
        scales.append(trust_region.scale)
    assert scales == pytest.approx([0.6, 0.72, 0.864, 1.0, 1.0])
    assert trust_region.values() == {"lr_scale": 1.0, "target_kl_scale": 1.0}


@pytest.mark.parametrize("kl", [math.inf, math.nan, 1e9])
def test_a_step_with_infinite_divergence_is_almost_undone(kl):
    trust_region = TrustRegion(TARGET)
    assert bounded(trust_region, None, kl, 0.0) == [pytest.approx(0.01)] and trust_region.scale == 0.5


def test_the_rate_follows_groups_and_region_and_its_state_is_resumed():
    item, other = (Controllers(trust_region=TARGET, scale_by_groups=True) for _ in range(2))
    item.bound_step(None, lambda: 4 * TARGET if item.trust_region.step_fraction == 1 else 0.0, lambda part: None)
    assert item.rate(1e-3, 0.5, 0.75) == 1e-3 * (0.5 * 0.5) * 0.5
    other.load_state_dict(item.state_dict())
    assert other.rate(1.0, 1.0, 0.0) == 0.5
    item.skip()  # an iteration without a step has no divergence, and leaves the rate alone
    assert item.values() == {"lr_scale": 0.5, "target_kl_scale": 1.0}
    assert Controllers().rate(1e-3, 0.5, 0.75) == 5e-4 and Controllers().values() == {}
    with rejects(ValueError, "rate scale"):
        other.load_state_dict({"trust_region": {"scale": 7.0}})


def rows_of(corridor, folder, **changes):
    result = RunFolder.create(folder, load(corridor(evaluation={"splits": []}, **changes)))
    train(result, quiet=True)
    return result.metrics()


FAR = {"iterations": 8, "minibatches": 2, "save_every": 9}


@pytest.mark.slow
def test_a_destructive_rate_is_reduced(corridor, tmp_path):
    """Without the region seeds end with every action invalid, for good; with it none does, and in the mean they learn.

    Which seed breaks differs among processors, whose sums round differently: hence several, and their mean.
    """
    seeds = range(5)
    fast = {"learning_rate": 0.05}
    free = [
        rows_of(corridor, tmp_path / f"free{seed}", optimizer=fast, training={**FAR, "target_kl": None}, seed=seed)
        for seed in seeds
    ]
    held = [rows_of(corridor, tmp_path / f"held{seed}", optimizer=fast, training=FAR, seed=seed) for seed in seeds]
    assert any(all(row["invalid_rate"] > 0.98 for row in rows[-2:]) for rows in free)
    assert not any(rows[-1]["invalid_rate"] > 0.98 for rows in held)
    assert fmean(rows[-1]["invalid_rate"] for rows in held) < fmean(rows[0]["invalid_rate"] for rows in held) - 0.02
    assert fmean(rows[0]["target_kl_scale"] for rows in held) < 0.2
    for rows in held:
        assert rows[0]["step_kl"] > 10 * TARGET
        assert max(row["lr_scale"] for row in rows) < 1


def test_a_usual_rate_is_unchanged(corridor, tmp_path):
    """Bit for bit: the region only watches."""
    free = rows_of(corridor, tmp_path / "free", training={"iterations": 2, "target_kl": None})
    held = rows_of(corridor, tmp_path / "held", training={"iterations": 2})
    for name in ("success_rate", "loss", "grad_norm", "learning_rate"):
        assert [row[name] for row in held] == [row[name] for row in free], name
    assert all(row["target_kl_scale"] == 1.0 for row in held)


def test_a_resumed_run_keeps_its_rate_scale(corridor, tmp_path):
    changes = {"optimizer": {"learning_rate": 0.05}, "training": {"iterations": 2}}
    full = rows_of(corridor, tmp_path / "whole", **changes)
    rows_of(corridor, tmp_path / "half", **{**changes, "training": {"iterations": 1}})
    half = RunFolder.open(tmp_path / "half")
    half.change(["training.iterations=2"])
    train(half, quiet=True)
    named = ("success_rate", "loss", "grad_norm", "target_kl_scale", "lr_scale")
    assert full[1]["lr_scale"] < 1
    assert [[row.get(name) for name in named] for row in half.metrics()] == [
        [row.get(name) for name in named] for row in full
    ]
