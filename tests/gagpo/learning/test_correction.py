"""Differences between sampler and trainer in a run."""

import copy

import numpy as np
import pytest
import torch

from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import build_rows
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model import networks
from gagpo.model.dtypes import autocast
from gagpo.objectives import Correction
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load, resolve
from gagpo.training.trainer import train
from tests.gagpo.learning.test_batch import conversation
from tests.rejections import rejects

STILL = {"learning_rate": 1e-12}
ONE = {"iterations": 1, "minibatches": 2, "dtype": "bfloat16"}
MEASURED = {"tasks": 1, "before": False}


def run(config, folder, *overrides):
    result = RunFolder.create(folder, load(config, overrides))
    train(result, quiet=True)
    return result.metrics()


@pytest.mark.parametrize("preset", ["gspo", "gagpo", "gmpo"])
def test_an_unchanged_policy_is_not_clipped(corridor, tmp_path, preset):
    """Half precision in the update, float32 in the sampler: with the sampler's numbers GSPO clips a seventh."""
    config = corridor(algorithm={"preset": preset, "kl": {"coefficient": 0.0}}, optimizer=STILL, training=ONE)
    (row,) = run(config, tmp_path / "run", "evaluation.before=false", "evaluation.tasks=1")
    assert row["clip_fraction"] == 0 and row["approx_kl"] == 0 and row["log_ratio_rms"] == 0
    assert 0 < row["mismatch_kl"] < 0.01 and row["mismatch_max"] > 0


def test_the_correction_follows_from_the_precisions(corridor):
    chosen = lambda *o: resolve(load(corridor(), o)).algorithm.correction.name  # noqa: E731
    assert chosen() == "none"
    assert chosen("training.dtype=bfloat16") == "recompute"
    assert chosen("engine.dtype=bfloat16") == chosen("engine=vllm") == "recompute"
    assert chosen("engine.dtype=bfloat16", "algorithm.correction=tis") == "tis"
    assert chosen("training.dtype=bfloat16", "algorithm.correction=none") == "none"


def test_the_resolved_correction_round_trips(corridor, tmp_path):
    from gagpo.settings import dump

    settings = load(corridor(), ["training.dtype=bfloat16"])
    path = tmp_path / "again.yaml"
    path.write_text(dump(settings))
    assert load(path) == settings


@pytest.mark.parametrize("correction", ["none", "icepop"])
def test_the_gap_is_always_logged(corridor, tmp_path, correction):
    config = corridor(training={"iterations": 1}, evaluation=MEASURED)
    (row,) = run(config, tmp_path / "run", f"algorithm.correction={correction}", "engine.dtype=bfloat16")
    assert all(np.isfinite(row[name]) for name in ("mismatch_kl", "mismatch_max", "mismatch_weight", "masked_tokens"))
    assert row["mismatch_max"] > 1e-4


def test_number_formats_that_lose_updates_are_rejected(corridor):
    with rejects(ValueError, key="engine.dtype", where="override 'engine.dtype=float16'"):
        load(corridor(), ["engine.dtype=float16"])
    assert load(corridor(), ["engine.dtype=float32"]).engine.dtype == "float32"


def updated(model, rows, correction, minibatches):
    """Weights and metrics after an update in bfloat16, and how many log-probabilities were read without gradients."""
    model, read = copy.deepcopy(model), []
    algorithm = load_algorithm("cispo").model_copy(update={"correction": Correction(name=correction)})
    updater = Updater(
        networks.Networks(model, autocast=lambda: autocast("cpu", "bfloat16")),
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        algorithm,
        UpdateSettings(minibatches=minibatches, packing=Packing(30)),
    )
    inner = networks.token_logprobs

    def counted(model, micro, *arguments, **named):
        if not torch.is_grad_enabled():
            read.extend(micro.token_K.tolist())
        return inner(model, micro, *arguments, **named)

    credit = Credit(np.linspace(-1, 1, 48), np.full(12, 4), "token")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "token_logprobs", counted)
        results = updater.update(rows, credit, np.random.default_rng(3))
    return [parameter.detach() for parameter in model.parameters()], results, read


@pytest.mark.parametrize(("minibatches", "scored"), [(1, 0), (3, 32)])
@pytest.mark.parametrize("correction", ["recompute", "tis", "icepop"])
def test_the_first_step_scores_itself(tiny, correction, minibatches, scored, monkeypatch):
    rng = np.random.default_rng(0)
    episodes = [conversation((rng.integers(5, 99, n), rng.integers(5, 99, 4))) for n in range(3, 15)]
    rows = build_rows(episodes)
    weights, results, read = updated(tiny[0], rows, correction, minibatches)
    assert len(read) == len(set(read)) == scored
    if minibatches == 1:
        assert results["ratio"] == 1.0

    # The same with every token scored before the first step.
    monkeypatch.setattr(Updater, "_first_step_scores", False)
    remaining, other, read = updated(tiny[0], rows, correction, minibatches)
    assert len(read) == 48
    for item, two in zip(weights, remaining, strict=True):
        torch.testing.assert_close(item, two, atol=1e-6, rtol=1e-6)
    for name in ("loss", "grad_norm", "mismatch_kl", "mismatch_max", "masked_tokens", "clip_fraction"):
        assert results[name] == pytest.approx(other[name], abs=1e-6), name
