"""What the trainer measures for controllers, and the errors of non-finite losses."""

import numpy as np
import pytest
import torch

from gagpo.credit import turns_for
from gagpo.data import build_rows
from gagpo.envs.pool import WorkerPool
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer
from tests.rejections import rejects

ONCE = {"iterations": 1, "minibatches": 1, "epochs": 1}
NO_EVALUATION = {"before": False, "tasks": 1}


@pytest.fixture
def trainer(corridor, tmp_path):
    def make(**changes):
        config = corridor(**{"training": ONCE, "evaluation": NO_EVALUATION, **changes})
        return Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)

    return make


def test_agpo_observes_the_kl_after_the_updates(trainer):
    """With one step on policy the KL before it is 0: measured there, the feedback would be dead."""
    adaptive = trainer(algorithm={"preset": "agpo_adaptive", "kl": {"coefficient": 0.0}})
    adaptive.run()
    (row,) = adaptive.folder.metrics()
    assert abs(row["approx_kl"]) < 1e-4 < abs(row["final_kl"])
    assert row["agpo_kl"] == pytest.approx(0.1 * max(0.0, row["final_kl"]))
    state = adaptive.learner.controllers.agpo.state
    assert state.by_task.keys() == set(state.tasks)


def played(made, iteration=0):
    """What the first iteration would learn from."""
    environment = made.settings.environment
    with WorkerPool(environment.id, environment.kwargs, workers=0) as pool:
        return made.collector.collect(made.sampler.agent, pool, iteration)


def test_agpo_observes_the_entropy_at_temperature_1(trainer):
    """The entropy does not depend on the sampling temperature of the responses."""
    result = trainer(algorithm={"preset": "agpo_adaptive", "kl": {"coefficient": 0.0}})
    episodes = played(result).episodes
    turns, results = turns_for(episodes, result.settings.algorithm.credit), []
    for temperature in (1.0, 1.5):
        for episode in episodes:
            episode.temperature = temperature
        results.append(result.learner._entropy(turns, build_rows(episodes)))
    assert results[0].shape == (4,) and (results[0] > 0).all()
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    hot, _ = result.learner.updater.score(build_rows(episodes), turns.num_tokens)
    assert np.abs(hot).max() > 0.01  # at that temperature the log-probabilities do differ from the engine's


def test_a_loss_that_is_not_finite_says_how_many_steps_were_taken(trainer, monkeypatch):
    monkeypatch.setattr("gagpo.learning.update.MAX_NONFINITE_STEPS", 1)
    result = trainer(training={"iterations": 1, "minibatches": 3})
    accumulate, calls = result.learner.updater._accumulate, []

    def poisoned(batch, *rest):
        calls.append(1)
        if len(calls) == 3:
            batch.micro_batches[0].old_logprob_K[0] = -torch.inf
        return accumulate(batch, *rest)

    result.learner.updater._accumulate = poisoned
    before = [parameter.clone() for parameter in result.learner.model.parameters()]
    with rejects(NonFiniteLoss, "old_logprob", "-inf", "2 steps"):
        result.run()
    assert not all(torch.equal(a, b) for a, b in zip(before, result.learner.model.parameters(), strict=True))
    assert not result.learner.model.training


def test_an_infinite_log_probability_stops_the_run_before_the_first_step(trainer, monkeypatch):
    monkeypatch.setattr("gagpo.learning.update.MAX_NONFINITE_STEPS", 1)
    result = trainer(training=ONCE)
    learn = result.learner.learn

    def poisoned(episodes, iteration):
        episodes[2].turns[0].logprobs[0] = -np.inf
        return learn(episodes, iteration)

    result.learner.learn = poisoned
    before = [parameter.clone() for parameter in result.learner.model.parameters()]
    with rejects(NonFiniteLoss, "-inf", "no step"):
        result.run()
    assert all(torch.equal(a, b) for a, b in zip(before, result.learner.model.parameters(), strict=True))


def test_lengths_follow_the_rollout(trainer):
    result = trainer(algorithm="dr_grpo")
    assert result.learner.updater.algorithm.aggregation.length == result.settings.rollout.max_tokens == 3
    assert result.settings.algorithm.aggregation.length == 3  # a run stores what it uses
