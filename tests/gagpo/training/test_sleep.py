"""The engine frees its memory during updates, rejects requests meanwhile, and wakes with new weights."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.model.weights import named_tensors
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer
from tests.rejections import rejects

CALLS = ("sleep", "wake", "load_weights", "submit", "generate", "collect")


def watched(config, folder, *overrides):
    """A finished run, and the calls of its engine and updates in order; what an asleep engine held of its weights."""
    trainer = Trainer(RunFolder.create(folder, load(config, overrides)), quiet=True)
    calls, held = [], []

    def spy(name):
        method = getattr(trainer.sampler.engine, name)

        def called(*arguments, **named):
            calls.append(name)
            return method(*arguments, **named)

        setattr(trainer.sampler.engine, name, called)

    for name in CALLS:
        spy(name)
    update = trainer.learner.updater.update

    def updated(*arguments, **named):
        calls.append("update")
        parameters = trainer.sampler.engine.model.parameters()
        held.append((len(trainer.sampler.engine._slot), sum(p.untyped_storage().nbytes() for p in parameters)))
        return update(*arguments, **named)

    trainer.learner.updater.update = updated
    trainer.run()
    return trainer, calls, held


@pytest.mark.parametrize("average", [False, True], ids=["last", "averaged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sleeping_engine_is_never_asked(corridor, tmp_path, dtype, average):
    config = corridor(training={"iterations": 3, "ema": average}, evaluation={"tasks": 2})
    trainer, calls, held = watched(config, tmp_path / "run", f"engine.dtype={dtype}")
    around = [name for name in calls if name in ("sleep", "update", "wake", "load_weights")]
    measured = ["sleep", "wake", "load_weights"] if average else []  # of the average, at the end
    assert around == ["sleep", "update", "wake", "load_weights"] * 3 + measured
    asleep = False
    for name in calls:
        assert not asleep or name in ("update", "wake", "load_weights"), name
        asleep = name == "sleep" or (asleep and name != "load_weights")
    assert "submit" in calls or "generate" in calls
    assert all(sessions == 0 for sessions, _ in held)
    assert all((weights == 0) == (dtype == "bfloat16") for _, weights in held)
    reference, learner = trainer.sampler.engine.model.parameters(), trainer.learner
    with learner.average.applied() if average else nullcontext():
        pairs = zip(reference, learner.model.parameters(), strict=True)
        assert all(torch.equal(a.detach(), b.detach().to(a.dtype)) for a, b in pairs)


def test_sleep_changes_no_result_and_can_be_left_out(corridor, tmp_path):
    config = corridor(evaluation={"before": False, "tasks": 1})
    ends = []
    for sleep in ("true", "false"):
        trainer, calls, _ = watched(config, tmp_path / sleep, "engine.dtype=bfloat16", f"engine.sleep={sleep}")
        assert ("sleep" in calls) == ("wake" in calls) == (sleep == "true")
        last = checkpoints.latest(trainer.folder.path / "checkpoints").path
        ends.append((last / "model" / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]


def test_an_update_that_fails_leaves_an_engine_that_answers_nobody(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer, dtype="bfloat16")
    request = Request(0, np.arange(5, 9, dtype=np.int32), 0)
    with pytest.raises(RuntimeError, match="burst"), weights_synced(engine, model):
        raise RuntimeError("burst")
    with rejects(ValueError, "asleep"):
        engine.load_weights(named_tensors(model))
    engine.wake()
    with rejects(ValueError, "asleep"):  # there is room for weights, and none are in it
        engine.generate([request], Sampling(max_tokens=2))
    engine.load_weights(named_tensors(model))
    assert engine.generate([request], Sampling(max_tokens=2))
