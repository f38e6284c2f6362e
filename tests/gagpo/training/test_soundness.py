"""A run never resumes from damaged files, loses finished work, or succeeds without learning."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from gagpo.base import durable, manifest
from gagpo.base.errors import GagpoError
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.states import names_of
from gagpo.eval.results import EvalResult
from gagpo.model.loading import ModelError, load_model
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.entries import CriticEntry, OptimizerEntry, StateEntry, WeightsEntry
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.empty_batch import NothingToLearn
from gagpo.training.events import IterationFinished
from gagpo.training.launch import new_run, resume_run
from gagpo.training.trainer import Trainer, train
from tests.gagpo.training.test_trainer import run as trained
from tests.gagpo.training.test_trainer import same, weights
from tests.rejections import rejects

SHORT = {"name": "transformers", "options": {"max_length": 128}}


def written(folder, iteration, model, tokenizer, optimizer, state, keep, critic=None):
    ranks = Ranks()
    entries = [
        WeightsEntry(model, None, tokenizer, ranks),
        OptimizerEntry(optimizer, names_of(model, critic), ranks),
        StateEntry(lambda: state, lambda _: None),
    ]
    if critic is not None:
        entries.append(CriticEntry(critic, ranks))
    saver = checkpoints.Saver(folder)
    saver.save(iteration, entries, keep)
    saver.wait()
    return checkpoints.latest(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, warm_model):
    """A checkpoint with a critic beside the optimiser."""
    from gagpo.model.loading import load_model, load_tokenizer

    model = load_model(warm_model)
    optimizer = torch.optim.AdamW(model.parameters())
    critic = torch.nn.Linear(4, 1)
    folder = tmp_path_factory.mktemp("saved")
    return written(folder, 3, model, load_tokenizer(warm_model), optimizer, {"iteration": 3}, 2, critic)


def test_every_damage_to_a_checkpoint_is_noticed_and_named(saved):
    rng = random.Random(1)
    files = [path for path in saved.path.rglob("*") if path.is_file()]
    saved.verify()
    for _ in range(120):
        path = rng.choice(files)
        data = path.read_bytes()
        type_name = rng.choice(["flip", "cut", "empty", "remove", "add"])
        if type_name == "flip":
            randrange = rng.randrange(len(data))
            path.write_bytes(
                data[:randrange] + bytes([data[randrange] ^ (1 << rng.randrange(8))]) + data[randrange + 1 :]
            )
        elif type_name == "cut":
            path.write_bytes(data[: rng.randrange(len(data))])
        elif type_name == "empty":
            path.write_bytes(b"")
        elif type_name == "remove":
            path.unlink()
        else:
            path.with_name("extra.bin").write_bytes(b"x")
        with pytest.raises(CheckpointError) as caught:
            saved.verify()
        assert str(saved.path) in str(caught.value) and "\n" not in str(caught.value)
        path.with_name("extra.bin").unlink(missing_ok=True)
        path.write_bytes(data)
    saved.verify()


NO_CONTROLLERS = '{"iteration": 1, "turns_total": 1, "tokens_total": 1, "position": 1, "controllers": null}'
LONG = json.dumps({"iteration": "x" * 100_000})


def test_a_damaged_checkpoint_stops_the_resume_and_is_named(corridor, tmp_path):
    folder = trained(corridor(training={"iterations": 1}), tmp_path / "run")
    saved = checkpoints.latest(folder.path / "checkpoints").path
    for name in ("optimizer/shard-00001-model-00001-of-00001.safetensors", "state.json", "model/model.safetensors"):
        data = (saved / name).read_bytes()
        flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
        for damaged in (data[:50], flipped):
            (saved / name).write_bytes(damaged)
            with rejects(CheckpointError, Path(name).name, advice="iteration-000001"):
                Trainer(RunFolder.open(folder.path), quiet=True)
        (saved / name).write_bytes(data)
    for state in ('{"iteration": 1}', "null", "[]", "[" * 100_000, NO_CONTROLLERS, LONG):
        (saved / "state.json").write_text(state)
        manifest.write(saved)  # intact on disk, but not a state
        with rejects(CheckpointError, "state.json") as caught:
            Trainer(RunFolder.open(folder.path), quiet=True)
        assert len(str(caught.value)) < 1000


def test_parameters_that_are_not_finite_are_never_saved(tiny, tmp_path):
    model, tokenizer = tiny
    optimizer = torch.optim.AdamW(model.parameters())
    written(tmp_path, 1, model, tokenizer, optimizer, {}, 2)
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with rejects(CheckpointError, "finite"):
        written(tmp_path, 2, model, tokenizer, optimizer, {}, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000001"]


def test_an_old_checkpoint_never_counts_as_whole_while_it_goes(tiny, tmp_path, monkeypatch):
    model, tokenizer = tiny
    optimizer = torch.optim.AdamW(model.parameters())
    observed = []

    def killed(path, **_):
        observed.append([checkpoint.iteration for checkpoint in checkpoints.checkpoints(tmp_path)])
        raise KeyboardInterrupt

    written(tmp_path, 1, model, tokenizer, optimizer, {}, 1)
    monkeypatch.setattr("gagpo.base.durable.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, 2, model, tokenizer, optimizer, {}, 1)
    assert observed == [[2]]
    monkeypatch.undo()
    written(tmp_path, 3, model, tokenizer, optimizer, {}, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000003"]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(OSError, match=r"result\.json"), durable.replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    log = tmp_path / "full"
    log.symlink_to("/dev/full")
    with pytest.raises(OSError, match="full"):
        durable.append_line(log, "{}")


def test_a_device_is_written_to_and_never_replaced(tmp_path):
    """``--out /dev/null`` as root made a file of the device, for every program of the machine."""
    for name in ("/dev/null", "/dev/full"):
        (tmp_path / Path(name).name).symlink_to(name)
    before = os.stat("/dev/null").st_rdev
    durable.write_text(tmp_path / "null", "{}")
    assert (tmp_path / "null").is_symlink() and os.stat("/dev/null").st_rdev == before
    with pytest.raises(OSError, match="full"):
        durable.write_text(tmp_path / "full", "{}")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):  # nobody reads it
        durable.write_text(tmp_path / "pipe", "{}")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    durable.write_text(tmp_path / "pipe", "{}")
    assert os.read(reader, 100) == b"{}"
    os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "null", "pipe"]


def test_a_result_goes_to_standard_output_wherever_it_leads(tmp_path):
    """``--out /dev/stdout`` made a file of the link ``/dev/stdout``."""
    code = "from pathlib import Path; from gagpo.base import durable; durable.write_text(Path('/dev/stdout'), '{}')"
    link = os.readlink("/dev/stdout")
    with (tmp_path / "redirected").open("w") as file:
        file.write("before ")
        file.flush()
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=120)
    assert (tmp_path / "redirected").read_text() == "before {}" and os.readlink("/dev/stdout") == link
    assert subprocess.check_output([sys.executable, "-c", code], timeout=120) == b"{}"


def test_a_trained_model_is_never_measured_as_before(corridor, tmp_path):
    config = corridor(training={"iterations": 2, "save_every": 1})
    folder = trained(config, tmp_path / "run", "training.iterations=1")
    (folder.path / "evals" / "before-test.json").unlink()
    train(resume_run(folder.path, ["training.iterations=2"]), quiet=True)
    assert not (folder.path / "evals" / "before-test.json").exists()


def test_a_finished_run_is_extended_to_the_very_end_of_a_longer_one(corridor, tmp_path):
    config = corridor()
    full = trained(config, tmp_path / "whole", "training.iterations=3")
    short = trained(config, tmp_path / "short", "training.iterations=1")
    after_one, average_of_one = (
        (short.path / "evals" / f"{stage}-test.json").read_bytes() for stage in ("after", "average")
    )
    train(resume_run(short.path, ["training.iterations=3"]), quiet=True)
    assert same(weights(full.path), weights(short.path))
    assert (short.path / "evals" / "iteration-0001-test.json").read_bytes() == after_one
    for stage in ("after", "average"):
        results = [EvalResult.load(item.path / "evals" / f"{stage}-test.json").tasks for item in (full, short)]
        assert results[0] == results[1]
    assert (short.path / "evals" / "earlier-average-0001-test.json").read_bytes() == average_of_one
    assert average_of_one != (short.path / "evals" / "average-test.json").read_bytes()
    with rejects(SettingsError, key="optimizer.learning_rate"):
        resume_run(short.path, ["optimizer.learning_rate=1"])


@pytest.mark.parametrize(
    ("changes", "key", "names"),
    [
        ({"environment": {"id": "gagpo/Nowhere-v0"}}, None, ("gagpo/Nowhere-v0",)),
        ({"evaluation": {"splits": ["tset"]}}, None, ("tset",)),
        ({"device": "cuda:17"}, None, ("cuda:17",)),
        ({"rollout": {"max_tokens": 128}, "engine": SHORT}, "rollout.max_tokens", ()),
    ],
)
def test_a_start_that_fails_leaves_its_name_free(corridor, tmp_path, changes, key, names):
    folder = new_run(corridor(**changes), [], tmp_path / "runs")
    with rejects(Exception, *names, key=key):
        train(folder, quiet=True)
    assert not folder.path.exists()


def test_an_iteration_in_which_every_episode_fails_stops_the_run_with_the_reason(corridor, tmp_path):
    broken = {"id": "tests.envs.faulty:gagpo-test/Broken-v0", "kwargs": {}}
    config = corridor(environment=broken, evaluation={"splits": ["test"], "before": False})
    with rejects(NothingToLearn, "broken"):
        trained(config, tmp_path / "run")


def test_an_evaluation_in_which_every_episode_fails_stops_the_run_with_the_reason(corridor, tmp_path):
    broken = {"id": "tests.envs.faulty:gagpo-test/Broken-v0", "kwargs": {}}
    with rejects(GagpoError, "8", where="before-train"):
        trained(corridor(environment=broken, evaluation={"splits": ["train"]}), tmp_path / "run")


def test_prompts_that_never_fit_stop_the_run(corridor, tmp_path):
    config = corridor(rollout={"max_tokens": 127}, engine=SHORT, evaluation={"before": False})
    with rejects(NothingToLearn, "prompt left"):
        trained(config, tmp_path / "run")


def test_a_signal_waits_until_weights_are_whole():
    interruptions, order = Interruptions(), []

    def soon():
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interruptions.watching():
        threading.Thread(target=soon).start()
        with interruptions.deferred():
            time.sleep(0.3)
            order.append("whole")
        order.append("never")
    assert order == ["whole"]


def test_an_interrupted_run_saves_and_ends_like_an_uninterrupted_one(corridor, tmp_path):
    config = corridor(training={"iterations": 3, "save_every": 100})
    full = trained(config, tmp_path / "whole")
    folder = RunFolder.create(tmp_path / "cut", load(config))

    def interrupt(event):
        if isinstance(event, IterationFinished) and event.metrics["iteration"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(folder, report=interrupt, quiet=True)
    assert checkpoints.latest(folder.path / "checkpoints").iteration == 2
    train(RunFolder.open(folder.path), quiet=True)
    assert same(weights(full.path), weights(folder.path))
    assert len(folder.metrics()) == 3


def test_a_second_interruption_within_an_update_saves_no_half_of_it(corridor, tmp_path):
    config = corridor(training={"iterations": 3, "save_every": 100, "minibatches": 2}, evaluation={"tasks": 1})
    full = trained(config, tmp_path / "whole")
    folder = RunFolder.create(tmp_path / "cut", load(config))
    trainer = Trainer(folder, quiet=True)
    optimizer = trainer.learner.optimizer
    step, steps = optimizer.step, []

    def interrupted():
        step()
        steps.append(1)
        if len(steps) == 3:  # the first of the second iteration's two
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    optimizer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert len(steps) == 3 and len(folder.metrics()) == 1
    train(RunFolder.open(folder.path), quiet=True)
    assert same(weights(full.path), weights(folder.path))
    assert [row["loss"] for row in folder.metrics()] == [row["loss"] for row in full.metrics()]


def test_a_step_that_makes_weights_worthless_ends_the_run_at_once(corridor, tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", load(corridor(training={"iterations": 3})))
    monkeypatch.setattr("gagpo.learning.learner.lr_scale", lambda *_: 1e36)
    with rejects(FloatingPointError, "iteration"):
        train(folder, quiet=True)
    assert not checkpoints.checkpoints(folder.path / "checkpoints")


def test_a_damaged_model_of_sft_is_named(tmp_path, warm_model):
    copy = tmp_path / "model"
    shutil.copytree(warm_model, copy)
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 4
    weights.write_bytes(data)
    with rejects(ModelError, "damaged", where="model.safetensors"):
        load_model(str(copy))
