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
    made = trainer(algorithm={"preset": "agpo_adaptive", "kl": {"coefficient": 0.0}})
    episodes = played(made).episodes
    turns, found = turns_for(episodes, made.settings.algorithm.credit), []
    for temperature in (1.0, 1.5):
        for episode in episodes:
            episode.temperature = temperature
        found.append(made.learner._entropy(turns, build_rows(episodes)))
    assert found[0].shape == (4,) and (found[0] > 0).all()
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    hot, _ = made.learner.updater.score(build_rows(episodes), turns.num_tokens)
    assert np.abs(hot).max() > 0.01  # at that temperature the log-probabilities do differ from the engine's


def test_a_loss_that_is_not_finite_says_how_many_steps_were_taken(trainer):
    made = trainer(training={"iterations": 1, "minibatches": 3, "max_nonfinite_steps": 1})
    accumulate, calls = made.learner.updater._accumulate, []

    def poisoned(batch, *rest):
        calls.append(1)
        if len(calls) == 3:
            batch.micro_batches[0].old_logprob_K[0] = -torch.inf
        return accumulate(batch, *rest)

    made.learner.updater._accumulate = poisoned
    before = [parameter.clone() for parameter in made.learner.model.parameters()]
    with pytest.raises(NonFiniteLoss, match=r"old_logprob .* is -inf; 2 steps of this update were taken before"):
        made.run()
    assert not all(torch.equal(a, b) for a, b in zip(before, made.learner.model.parameters(), strict=True))
    assert not made.learner.model.training


def test_an_infinite_log_probability_stops_the_run_before_the_first_step(trainer):
    made = trainer(training={**ONCE, "max_nonfinite_steps": 1})
    learn = made.learner.learn

    def poisoned(episodes, iteration):
        episodes[2].turns[0].logprobs[0] = -np.inf
        return learn(episodes, iteration)

    made.learner.learn = poisoned
    before = [parameter.clone() for parameter in made.learner.model.parameters()]
    with pytest.raises(NonFiniteLoss, match="is -inf; no step was taken"):
        made.run()
    assert all(torch.equal(a, b) for a, b in zip(before, made.learner.model.parameters(), strict=True))


def test_lengths_follow_the_rollout(trainer):
    made = trainer(algorithm="dr_grpo")
    assert made.learner.updater.algorithm.aggregation.length == made.settings.rollout.max_tokens == 3
    assert made.settings.algorithm.aggregation.length == 3  # a run stores what it uses
