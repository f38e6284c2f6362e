"""Sampling ahead in lockstep: a run is repeated bit for bit, and one that was killed ends as one that was not."""

import pytest

from gagpo.collecting.batches_ahead import BatchesAhead
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer, train
from tests.gagpo.distributed.conftest import train_in_two, write_config
from tests.gagpo.training.resuming import killed_after, killed_and_resumed, require_equal
from tests.gagpo.training.test_mixture import CURRICULUM, WORLDS
from tests.gagpo.training.test_trainer import run

AHEAD = {"workers": 1, "tasks": 4, "samples": 3}
MIXED = {"environment": None, "environments": WORLDS, "curriculum": CURRICULUM}
HELD = {"preset": "gagpo", "kl": {"coefficient": 0.1}}
DYNAMIC = {"preset": "dapo", "controllers": {"dynamic_sampling": {"rounds": 2}}}
RUNS = {
    "one world": {},
    "two batches": {"ahead": 2},
    "held to a reference": {"algorithm": HELD},
    "mixture": MIXED,
    "mixture, dynamic sampling": {**MIXED, "algorithm": DYNAMIC},
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_killed_after_any_iteration_it_ends_bit_equal(corridor, tmp_path, changes):
    changes = dict(changes)
    ahead = changes.pop("ahead", 1)
    iterations = 4
    config = corridor(
        **changes,
        rollout={**AHEAD, "ahead": ahead},
        training={"iterations": iterations, "save_every": 1, "keep": iterations},
        evaluation={"tasks": 2, "every": 2, "before": False},
    )
    whole = run(config, tmp_path / "whole")
    rows = whole.metrics()
    old = [row["staleness_max"] for row in rows]
    assert changes.get("algorithm") is DYNAMIC or old == [min(ahead, number) for number in range(iterations)]
    for done in range(1, iterations):
        part = killed_after(done, whole, tmp_path)
        train(RunFolder.open(part), quiet=True)
        require_equal(RunFolder.open(part), whole)


def test_two_ranks_end_bit_equal_too(tmp_path, warm_model):
    config = write_config(
        tmp_path,
        warm_model,
        **MIXED,
        rollout={**AHEAD, "ahead": 1},
        training={"iterations": 3, "save_every": 1, "keep": 3},
        evaluation={"tasks": 2, "before": False},
    )
    train_in_two([(config, tmp_path / "whole", None)], tmp_path)
    whole = RunFolder.open(tmp_path / "whole")
    assert whole.metrics()[-1]["staleness_max"] == 1
    parts = [killed_after(done, whole, tmp_path) for done in (1, 2)]
    train_in_two([(config, part, None) for part in parts], tmp_path)
    for part in parts:
        require_equal(RunFolder.open(part), whole)


def test_a_process_that_is_killed_ends_bit_equal(corridor, tmp_path):
    config = corridor(**MIXED, rollout={**AHEAD, "ahead": 1}, training={"iterations": 8, "save_every": 3})
    whole = run(config, tmp_path / "whole")
    require_equal(killed_and_resumed(config, tmp_path / "runs", rows=4), whole)


def test_an_interrupted_run_keeps_what_older_weights_have_sampled(corridor, tmp_path, monkeypatch):
    """Ctrl-C in the middle of the next collection: its batch is part of the checkpoint."""
    config = corridor(rollout={**AHEAD, "ahead": 1}, training={"iterations": 4, "save_every": 4})
    whole = run(config, tmp_path / "whole")
    original = BatchesAhead._kept

    def interrupted(self, played):
        if trainer.iteration == 2:
            raise KeyboardInterrupt
        return original(self, played)

    part = RunFolder.create(tmp_path / "part", load(config))
    trainer = Trainer(part, quiet=True)
    monkeypatch.setattr(BatchesAhead, "_kept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    monkeypatch.undo()
    saved = checkpoints.latest(part.path / "checkpoints")
    assert saved.iteration == 2 and len(saved.state()["due"]) == 8
    train(RunFolder.open(part.path), quiet=True)
    require_equal(part, whole)


def test_what_was_not_finished_in_time_is_played_by_newer_weights(corridor, tmp_path):
    """Each place is trained on once all the same."""
    config = corridor(rollout={**AHEAD, "ahead": 1}, training={"iterations": 3, "save_every": 1, "keep": 3})
    whole = run(config, tmp_path / "whole")
    part = killed_after(1, whole, tmp_path)
    (saved,) = checkpoints.checkpoints(part / "checkpoints")
    state = saved.state()
    folder = RunFolder.open(part)
    trainer = Trainer(folder, quiet=True)
    assert [one.wave.version for one in trainer.collector._open] == [0] * 4 and len(trainer.collector.due) == 4
    assert trainer.collector.state_dict()["due"] == state["due"] == list(range(4, 12))
    trainer.collector._open.clear()
    trainer.collector.due = list(state["due"])
    trainer.run()
    assert [row["staleness_max"] for row in folder.metrics()][1:] == [0, 1]
    assert checkpoints.latest(part / "checkpoints").state()["due"] == []


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"no archive"], ids=["cut", "other"])
def test_a_damaged_file_is_named(corridor, tmp_path, damage):
    whole = run(corridor(rollout={**AHEAD, "ahead": 1}, training={"iterations": 2, "save_every": 1}), tmp_path / "run")
    saved = checkpoints.checkpoints(whole.path / "checkpoints")[0]
    path = saved.path / checkpoints.SAMPLED
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"sampled.npz cannot be read"):
        saved.load_sampled(Trainer(RunFolder.open(whole.path), quiet=True).collector.load_sampled)
