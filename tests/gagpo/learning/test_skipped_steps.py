"""Steps with a non-finite loss are skipped, up to a limit."""

import copy
import json

import numpy as np
import pytest
import torch

from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import build_rows
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.networks import Networks
from gagpo.objectives import Correction
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.events import WarningIssued
from gagpo.training.trainer import Trainer
from tests.gagpo.learning.test_batch import conversation
from tests.rejections import rejects

TOKENS = 4


def rows_of(seed):
    rng = np.random.default_rng(seed)
    return build_rows([conversation((rng.integers(5, 99, 6), rng.integers(5, 99, TOKENS))) for _ in range(4)])


def updater(model, **changes):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Updater(
        Networks(model), optimizer, load_algorithm("cispo"), UpdateSettings(**{"max_nonfinite_steps": 3, **changes})
    )


def update(made, seed=0, poison=False):
    rows = rows_of(seed)
    if poison:
        rows[1].logprob_K[0] = np.nan
    return made.update(
        rows, Credit(np.linspace(-1.0, 1.0, 4 * TOKENS), np.full(4, TOKENS), "token"), np.random.default_rng(seed)
    )


def state(made):
    return copy.deepcopy([made.networks.policy.state_dict(), made.optimizer.state_dict()])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_skipped_step_leaves_weights_and_optimiser_as_they_were(tiny, what):
    result = updater(tiny[0])
    update(result)
    before = state(result)
    poisoned = tiny[0].get_input_embeddings().weight
    handle = poisoned.register_hook(lambda gradient: gradient * torch.inf) if what == "gradient" else None
    learned = update(result, 1, poison=what == "loss")
    if handle:
        handle.remove()
    assert same(state(result), before)
    assert learned == {"updates": 0.0, "skipped_steps": 1.0}
    assert result.skipped.turns == ([1] if what == "loss" else [0, 1, 2, 3])
    assert (
        (result.ratio_K == 1).all()
        and all(p.grad is None for p in result.parameters)
        and not result.networks.policy.training
    )
    after = update(result, 2)
    assert not same(state(result), before) and after["skipped_steps"] == 0 and after["updates"] == 1

    never = updater(copy.deepcopy(tiny[0]))  # what follows is as if the skipped update had never been
    never.networks.policy.load_state_dict(before[0])
    never.optimizer.load_state_dict(before[1])
    update(never, 2)
    assert same(state(never), state(result))


def test_the_other_steps_of_the_update_are_taken_and_measured(tiny):
    result = updater(tiny[0], minibatches=4)
    learned = update(result, poison=True)
    assert (learned["updates"], learned["skipped_steps"]) == (3.0, 1.0)
    assert all(np.isfinite(value) for value in learned.values())


@pytest.mark.parametrize("correction", ["none", "recompute"])
@pytest.mark.parametrize("skipped", range(4))
def test_a_later_skip_does_not_hide_how_far_sampler_and_trainer_were_apart(tiny, correction, skipped):
    """The gap is measured once, before the first step that is taken."""
    algorithm = load_algorithm("cispo").model_copy(update={"correction": Correction(name=correction)})
    result, rows = updater(tiny[0], minibatches=4), rows_of(0)
    result.algorithm = algorithm
    credit = Credit(np.linspace(-1.0, 1.0, 4), np.full(4, TOKENS))
    order = np.random.default_rng(0).permutation(4)
    credit.advantage[order[skipped]] = np.nan
    learned = result.update(rows, credit, np.random.default_rng(0))
    assert learned["skipped_steps"] == 1 and result.skipped.turns == [order[skipped]]
    assert learned["mismatch_max"] > 0 and learned["mismatch_weight"] > 0


def test_the_limit_counts_skips_in_a_row_across_updates(tiny):
    result = updater(tiny[0])
    for poison in (True, True, False, True, True):
        update(result, poison=poison)
    assert result.skipped.in_a_row == 2
    before = state(result)
    with rejects(NonFiniteLoss, "old_logprob", "nan", "3 steps", "no step"):
        update(result, poison=True)
    assert same(state(result), before)


def test_a_non_finite_parameter_ends_training(tiny):
    result = updater(tiny[0])
    result.optimizer.param_groups[0]["lr"] = 1e36
    with rejects(NonFiniteLoss, "parameter", "NaN", "last checkpoint"):
        for seed in range(2):
            update(result, seed)
    assert result.skipped.in_a_row == 1


def poisoned(trainer, iterations):
    """The trainer's log-probabilities of one episode are NaN in some iterations, counted from 0."""
    learn = trainer.learner.learn

    def changed(episodes, iteration):
        if iteration in iterations:
            episodes[3].turns[0].logprobs[:] = np.nan
        return learn(episodes, iteration)

    trainer.learner.learn = changed
    return trainer


def test_a_run_continues_and_saves_the_offending_episodes(corridor, tmp_path):
    config = corridor(training={"iterations": 3, "minibatches": 1}, evaluation={"before": False, "tasks": 1})
    messages = []
    folder = RunFolder.create(tmp_path / "run", load(config))
    poisoned(Trainer(folder, report=messages.append, quiet=True), {1}).run()
    assert [row["skipped_steps"] for row in folder.metrics()] == [0.0, 1.0, 0.0]
    (line,) = (folder.path / "episodes" / "nonfinite-0002.jsonl").read_text().splitlines()
    assert json.loads(line)["sample"] == 3
    assert any(isinstance(message, WarningIssued) and "skipped; see" in message.line for message in messages)


def test_the_count_in_a_row_is_resumed(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr("gagpo.learning.update.MAX_NONFINITE_STEPS", 2)
    training = {"iterations": 2, "minibatches": 1}
    config = corridor(training=training, evaluation={"before": False, "tasks": 1})
    folder = RunFolder.create(tmp_path / "run", load(config))
    trainer = poisoned(Trainer(folder, quiet=True), {0, 1})
    with rejects(NonFiniteLoss, "iteration 2", "2 steps", "nonfinite-0002"):
        trainer.run()
    assert checkpoints.latest(folder.path / "checkpoints").state()["skipped_in_a_row"] == 1
    with rejects(NonFiniteLoss, "iteration 2"):
        poisoned(Trainer(RunFolder.open(folder.path), quiet=True), {1}).run()
