"""Runs that sample ahead: how old their turns are, that nothing is lost, and that errors and interruptions end them."""

import json
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.episodes import read_episodes
from gagpo.agents.rollout import derive_seed
from gagpo.collecting.async_collector import AsyncCollector
from gagpo.collecting.async_rollout import AsyncRollout
from gagpo.collecting.batches_ahead import BatchesAhead
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.envs.pool import EnvironmentBroken
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import Trainer, train
from tests.gagpo.training.test_trainer import run, start, wait_for_rows

AHEAD = {"workers": 1, "ahead": 1}


def trained_tasks(folder):
    """Tasks of all episodes that were trained on, iteration by iteration, and the versions of their turns."""
    found = []
    for path in sorted((folder / "episodes").glob("train-*.jsonl")):
        rows = [row for row in read_episodes(path) if row["kept"]]
        found.append((Counter(row["task"] for row in rows), [t["version"] for row in rows for t in row["turns"]]))
    return found


@pytest.mark.parametrize("lockstep", [True, False])
def test_ahead_trains_on_every_task_in_turn_and_says_how_old_it_was(corridor, tmp_path, lockstep):
    config = corridor(rollout={**AHEAD, "lockstep": lockstep}, training={"iterations": 6}, evaluation={"every": 2})
    folder = run(config, tmp_path / "run")
    rows = folder.metrics()
    assert [row["iteration"] for row in rows] == list(range(1, 7))
    iterations = trained_tasks(folder.path)
    for row, (tasks, versions) in zip(rows, iterations, strict=True):
        behind = row["iteration"] - 1 - np.asarray(versions)
        assert behind.min() >= 0 and row["staleness_max"] == behind.max() <= 4
        assert row["staleness_mean"] == pytest.approx(behind.mean()) and row["stale_episodes"] == 0
        assert set(tasks.values()) == {6} and len(tasks) == 4
    assert rows[0]["staleness_max"] == 0 and any(row["staleness_max"] > 0 for row in rows)
    assert sum((tasks for tasks, _ in iterations), Counter()) == {f"door-{door:02d}": 18 for door in range(8)}
    assert not any(thread.name == "sampling" for thread in threading.enumerate())
    assert {path.stem for path in (folder.path / "evals").glob("*.json")} >= {"before-test", "after-test"}


def test_ahead_learns(corridor, tmp_path):
    config = corridor(
        environment={"kwargs": {"max_turns": 40}},  # so that chance finds the door before anything is learned
        rollout=AHEAD,
        training={"iterations": 20, "save_every": 20},
        evaluation={"before": False},
    )
    rows = run(config, tmp_path / "run").metrics()
    success = [row["success_rate"] for row in rows]
    old = max(row["mismatch_kl"] for row in rows if row["staleness_mean"] > 0)
    assert rows[0]["mismatch_kl"] < 1e-6 < 1e-3 < old
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.4


@pytest.mark.parametrize("kind", [BatchesAhead, AsyncCollector])
def test_evaluation_is_of_the_newest_weights(corridor, tmp_path, monkeypatch, kind):
    rolling = {**AHEAD, "ahead": 3, "lockstep": kind is BatchesAhead}
    config = corridor(rollout=rolling, training={"iterations": 4}, evaluation={"every": 1})
    seen = []
    original = kind.paused

    def paused(self, engine):
        context = original(self, engine)

        class Watched:
            def __enter__(inner):
                context.__enter__()
                pairs = zip(engine.model.parameters(), trainer.learner.model.parameters(), strict=True)
                seen.append(all(bool((a == b).all()) for a, b in pairs) and engine.model is not trainer.learner.model)

            def __exit__(inner, *error):
                return context.__exit__(*error)

        return Watched()

    monkeypatch.setattr(kind, "paused", paused)
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    trainer.run()
    assert seen == [True] * 6  # the sixth is of the average: the weights in training hold it meanwhile


def test_episodes_that_are_too_old_are_dropped_and_played_again(corridor, tmp_path, monkeypatch):
    """One episode of each of the first groups is held back for a few updates."""
    config = corridor(
        rollout={**AHEAD, "ahead": 2, "max_staleness": 2, "tasks": 2, "samples": 2, "lockstep": False},
        training={"iterations": 8},
    )
    late = {}
    original = AsyncRollout._take_ready

    def called(self):
        slots = original(self)
        for slot in slots:
            if self.requests[slot].place == 1 and self.requests[slot].attempt == 0 and self.channel.version < 3:
                late[slot] = True
        held = [slot for slot in slots if slot in late and self.channel.version < 3 and self.states[slot].episode.turns]
        self.ready += held
        return [slot for slot in slots if slot not in held]

    monkeypatch.setattr(AsyncRollout, "_take_ready", called)
    folder = run(config, tmp_path / "run")
    rows = folder.metrics()
    assert sum(row["stale_episodes"] for row in rows) >= 1
    assert all(row["staleness_max"] <= 2 for row in rows)
    total = sum((tasks for tasks, _ in trained_tasks(folder.path)), Counter())
    assert set(total.values()) == {4} and len(total) == 8  # 16 groups of 2 are two epochs of 8 tasks
    played = [row for path in (folder.path / "episodes").glob("train-*") for row in read_episodes(path)]
    turns = sum(len(row["turns"]) for row in played)
    assert rows[-1]["turns_total"] > turns  # what was dropped was played too


def test_a_killed_run_loses_no_task_and_trains_on_none_twice(corridor, tmp_path):
    iterations = 10
    config = corridor(
        rollout={**AHEAD, "ahead": 2, "lockstep": False}, training={"iterations": iterations, "save_every": 3}
    )
    killed = tmp_path / "runs" / "corridor"
    process = start(config, tmp_path / "runs")
    wait_for_rows(killed / "metrics.jsonl", 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    saved = checkpoints.latest(killed / "checkpoints")
    state = saved.state()
    assert saved.iteration < iterations and 0 < len(state["due"]) <= 8
    assert state["position"] - len(state["due"]) == 4 * saved.iteration
    resumed = start(None, tmp_path / "runs", "--resume", killed)
    output, _ = resumed.communicate(timeout=180)
    assert resumed.returncode == 0, output
    rows = RunFolder.open(killed).metrics()
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    assert rows[saved.iteration]["staleness_max"] == 0  # nothing sampled before the kill was kept
    total = sum((tasks for tasks, _ in trained_tasks(killed)), Counter())
    assert total == {f"door-{door:02d}": 6 * iterations // 2 for door in range(8)}


def test_ctrl_c_saves_and_ends_at_once(corridor, tmp_path):
    config = corridor(rollout=AHEAD, training={"iterations": 500, "save_every": 500})
    process = start(config, tmp_path / "runs")
    folder = tmp_path / "runs" / "corridor"
    wait_for_rows(folder / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 130, output
    saved = checkpoints.latest(folder / "checkpoints")
    assert saved.iteration >= 3 and saved.state()["position"] >= 4 * saved.iteration


def test_an_error_of_the_sampling_thread_ends_the_run(corridor, tmp_path, monkeypatch):
    config = corridor(rollout=AHEAD, training={"iterations": 50})
    original, calls = TransformersEngine.submit, []

    def submit(self, requests, sampling):
        calls.append(threading.current_thread().name)
        if len(calls) > 60 and calls[-1] == "sampling":
            raise MemoryError("no room for the cache")
        return original(self, requests, sampling)

    monkeypatch.setattr(TransformersEngine, "submit", submit)
    with pytest.raises(MemoryError, match="no room for the cache"):
        run(config, tmp_path / "run")
    assert not any(thread.name == "sampling" for thread in threading.enumerate())


def test_an_environment_that_cannot_start_ends_the_run(corridor, tmp_path):
    environment = {"id": "gagpo.envs.testing:gagpo-test/Faulty-v0", "kwargs": {"max_turns": 4}, "split": "train"}
    evaluation = {"splits": ["test"], "before": False}
    config = corridor(environment=environment, rollout=AHEAD, evaluation=evaluation)
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    trainer.settings.environment.kwargs["broken"] = "raise"
    begun = time.monotonic()
    with pytest.raises(EnvironmentBroken):
        trainer.run()
    assert time.monotonic() - begun < 60


def test_the_engine_has_weights_of_its_own_and_takes_a_copy(corridor, tmp_path):
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(corridor(rollout=AHEAD))), quiet=True)
    engine = trainer.sampler.engine
    assert not engine.shares_weights and engine.model is not trainer.learner.model
    same = Trainer(RunFolder.create(tmp_path / "other", load(corridor())), quiet=True)
    assert same.sampler.engine.shares_weights and same.sampler.engine.model is same.learner.model
    assert type(same.collector).__name__ == "Collector"


def test_dynamic_sampling_goes_on_with_further_tasks(corridor, tmp_path):
    config = corridor(algorithm="dapo", rollout=AHEAD, training={"iterations": 2})
    folder = run(config, tmp_path / "run")
    rows = folder.metrics()
    assert len(rows) == 2 and all(1 <= row["sampling_rounds"] <= 10 for row in rows)
    for path in sorted((folder.path / "episodes").glob("train-*.jsonl")):
        groups = Counter((row["group"], row["task"]) for row in read_episodes(path))
        assert set(groups.values()) == {6}


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("algorithm", ["apmpo", "ppo_turn"])
def test_controllers_critics_and_adapters_go_with_it(corridor, tmp_path, algorithm, lora):
    if lora:
        pytest.importorskip("peft")
    config = corridor(
        algorithm=algorithm, rollout=AHEAD, lora=lora, training={"iterations": 2}, evaluation={"before": False}
    )
    rows = run(config, tmp_path / "run").metrics()
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)


REFUSED = {
    "agpo": ({"algorithm": "agpo_adaptive"}, "controllers.agpo sets temperatures"),
    "workers": ({"rollout": {"ahead": 1, "workers": 0}}, "set workers=1"),
    "staleness": ({"rollout": {"ahead": 3, "workers": 1, "max_staleness": 2}}, "raise max_staleness or lower ahead"),
}


@pytest.mark.parametrize("changes,said", REFUSED.values(), ids=REFUSED)
def test_what_cannot_go_with_it_is_refused_in_one_line(corridor, changes, said):
    with pytest.raises(SettingsError, match=said):
        load(corridor(**{"rollout": AHEAD, **changes}))


def test_an_engine_on_the_trainers_weights_is_refused(corridor, tmp_path, outside):
    source = (outside / "elsewhere.py").read_text().replace("shares_weights = False", "shares_weights = True")
    (outside / "elsewhere.py").write_text(source)
    settings = load(corridor(engine="elsewhere:Constant", rollout=AHEAD))
    with pytest.raises(SettingsError, match="samples from the very weights"):
        Trainer(RunFolder.create(tmp_path / "run", settings), quiet=True)


def test_several_processes_may_train_meanwhile_but_not_sample_on_their_own_cards(corridor):
    require_fitting(load(corridor(rollout={**AHEAD, "tasks": 3})), 2)  # one plays for all
    with pytest.raises(SettingsError, match="set engine=vllm-server with GPUs of its own"):
        require_fitting(load(corridor(rollout=AHEAD, engine="vllm")), 2)


def test_the_correction_is_for_older_weights_unless_another_is_named(corridor):
    assert load(corridor()).algorithm.correction.name == "none"
    assert load(corridor(rollout=AHEAD)).algorithm.correction.name == "token"
    for name in ("none", "recompute", "sequence"):
        algorithm = {"preset": "gagpo", "correction": {"name": name}}
        assert load(corridor(rollout=AHEAD, algorithm=algorithm)).algorithm.correction.name == name


def test_without_ahead_nothing_of_it_is_there(corridor, tmp_path):
    folder = run(corridor(), tmp_path / "run")
    assert "staleness_mean" not in folder.metrics()[0]
    assert "version" not in json.dumps(list(read_episodes(folder.path / "episodes" / "train-0001.jsonl")))
    assert checkpoints.latest(folder.path / "checkpoints").state()["due"] == []
    assert derive_seed(1, "iteration 0 round 0") != derive_seed(1, "place 0")
    train(RunFolder.open(folder.path), quiet=True)
