"""A step that goes too far is taken back in part, and the rate follows; one that does not is left alone."""

import math
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gagpo.controllers import TrustRegion, TrustRegionController
from gagpo.learning.update import divergence
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.learner import Learner
from gagpo.training.trainer import Trainer, train

TARGET = 0.05


def region(**options):
    return TrustRegionController(TrustRegion(**options))


def test_the_divergence_is_that_of_two_distributions():
    """Sampled from the old one, k3 has the mean KL(old || new)."""
    old, new = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    drawn = np.repeat(np.arange(3), [5000, 3000, 2000])
    exact = float((old * (old / new).log()).sum())
    assert divergence((new / old).log().numpy()[drawn]) == pytest.approx(exact, abs=1e-6)
    assert divergence(np.zeros(3)) == divergence(np.zeros(0)) == 0.0


def test_what_stays_near_is_not_even_measured():
    one = region()
    assert not one.suspects(TARGET / 5)
    assert one.suspects(TARGET / 3) and one.suspects(None) and one.suspects(math.nan)
    assert one.part(TARGET) is None and one.part(1.4 * TARGET) is None


def test_a_step_is_shortened_by_the_root_and_the_rate_with_it():
    one = region()
    one.suspects(None)
    assert one.part(4 * TARGET) == pytest.approx(0.5)
    assert one.part(1.2 * TARGET) is None
    one.observe()
    assert one.scale == pytest.approx(0.5)
    assert one.values() == {"rate_scale": 0.5, "step_kept": 0.5, "step_kl": pytest.approx(4 * TARGET)}
    scales = []
    for _ in range(5):  # iterations that stay near
        one.suspects(0.0)
        one.observe()
        scales.append(one.scale)
    assert scales == pytest.approx([0.6, 0.72, 0.864, 1.0, 1.0])
    assert one.values() == {"rate_scale": 1.0, "step_kept": 1.0}


@pytest.mark.parametrize("kl", [math.inf, math.nan, 1e9])
def test_a_step_beyond_measure_is_all_but_undone(kl):
    one = region()
    one.suspects(None)
    assert one.part(kl) == pytest.approx(one.LEAST)
    one.observe()
    assert one.scale == 0.5


def test_its_state_is_resumed():
    one, other = region(), region()
    one.scale = 0.3
    other.load_state_dict(one.state_dict())
    assert other.scale == 0.3
    with pytest.raises(ValueError, match="scale of a learning rate"):
        other.load_state_dict({"scale": 7.0})


def rows_of(corridor, folder, **changes):
    made = RunFolder.create(folder, load(corridor(evaluation={"before": False}, **changes)))
    train(made, quiet=True)
    return made.metrics()


FAR = {"iterations": 8, "minibatches": 2, "save_every": 9}


def test_a_rate_that_destroys_is_held(corridor, tmp_path):
    """Without the region seeds end with every action invalid, for good; with it none does, and in the mean they learn.

    Which seed breaks differs among processors, whose sums round differently: hence several, and their mean.
    """
    seeds = range(5)
    fast = {"learning_rate": 0.05}
    free = [
        rows_of(corridor, tmp_path / f"free{seed}", optimizer=fast, training={**FAR, "trust_region": None}, seed=seed)
        for seed in seeds
    ]
    held = [rows_of(corridor, tmp_path / f"held{seed}", optimizer=fast, training=FAR, seed=seed) for seed in seeds]
    assert any(all(row["invalid_rate"] > 0.98 for row in rows[-2:]) for rows in free)
    assert not any(rows[-1]["invalid_rate"] > 0.98 for rows in held)
    assert fmean(rows[-1]["invalid_rate"] for rows in held) < fmean(rows[0]["invalid_rate"] for rows in held) - 0.02
    assert fmean(rows[0]["step_kept"] for rows in held) < 0.2
    for rows in held:
        assert rows[0]["step_kl"] > 10 * TARGET
        assert max(row["rate_scale"] for row in rows) < 1


def test_a_usual_rate_is_left_alone(corridor, tmp_path):
    """Bit for bit: the region only watches."""
    free = rows_of(corridor, tmp_path / "free", training={"iterations": 2, "trust_region": None})
    held = rows_of(corridor, tmp_path / "held", training={"iterations": 2})
    for name in ("success_rate", "loss", "grad_norm", "learning_rate"):
        assert [row[name] for row in held] == [row[name] for row in free], name
    assert all(row["step_kept"] == 1.0 for row in held)


def test_a_run_that_is_continued_goes_on_with_its_rate(corridor, tmp_path):
    fast = {"learning_rate": 0.05}
    whole = rows_of(corridor, tmp_path / "whole", optimizer=fast, training={"iterations": 3, "save_every": 1})
    settings = load(corridor(evaluation={"before": False}, optimizer=fast, training={"iterations": 3, "save_every": 1}))
    half = RunFolder.create(tmp_path / "half", settings)
    trainer = Trainer(half, quiet=True)
    trainer.settings = settings.model_copy(update={"training": settings.training.model_copy(update={"iterations": 1})})
    trainer.run()
    (half.path / "evals" / "after-test.json").unlink()
    train(RunFolder.open(half.path), quiet=True)
    named = ("success_rate", "loss", "grad_norm", "learning_rate", "step_kept", "rate_scale")
    assert whole[1]["rate_scale"] < 1
    assert [[row.get(name) for name in named] for row in half.metrics()] == [
        [row.get(name) for name in named] for row in whole
    ]


def test_an_iteration_without_a_step_leaves_the_rate_alone():
    """It has no divergence, and that of the iteration before, which no checkpoint holds, is not taken for its own."""
    held = region()
    held.kl, held.scale = 1.0, 0.5
    learner = SimpleNamespace(updater=SimpleNamespace(ratio_K=np.ones(3)))
    Learner._bound_step(learner, held, [], [], 0, {"updates": 0.0})
    assert held.scale == 0.5 and held.kl is None and "step_kl" not in held.values()
