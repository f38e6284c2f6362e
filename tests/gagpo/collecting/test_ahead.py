"""Sampling ahead: deterministic runs repeat and resume bit-identically; others drop only stale episodes."""

import threading
from collections import Counter

import numpy as np
import pytest

from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.context import Context, RejectedRequest
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import RolloutLoop
from gagpo.collecting.ahead import AheadCollector
from gagpo.collecting.collector import BatchBuilder
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.collecting.sampling_thread import StreamSource, VersionedAgent
from gagpo.data import Episode, read_episodes
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.entries import SampledEntry
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load, resolve
from gagpo.training.trainer import Trainer, train
from tests.gagpo.training.resuming import killed_after, killed_and_resumed, require_equal
from tests.gagpo.training.test_mixture import ENVIRONMENTS_TRIED
from tests.gagpo.training.test_trainer import run
from tests.rejections import rejects

AHEAD = {"workers": 1, "ahead": 1}
SMALL = {**AHEAD, "tasks": 4, "group_size": 3}
MIXED = {"environment": None, "environments": ENVIRONMENTS_TRIED}
DYNAMIC = {"preset": "dapo", "controllers": {"dynamic_sampling": {"rounds": 2}}}


def trained_tasks(folder):
    """Tasks of all episodes that were trained on, iteration by iteration, and the versions of their turns."""
    results = []
    for path in sorted((folder / "episodes").glob("train-*.jsonl")):
        rows = [row for row in read_episodes(path) if row["kept"]]
        results.append((Counter(row["task"] for row in rows), [t["version"] for row in rows for t in row["turns"]]))
    return results


@pytest.mark.parametrize("deterministic", [True, False])
def test_ahead_trains_on_every_task_in_turn_and_says_how_old_it_was(corridor, tmp_path, deterministic):
    config = corridor(
        rollout={**AHEAD, "deterministic": deterministic}, training={"iterations": 6}, evaluation={"every": 2}
    )
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


@pytest.mark.slow
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


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_is_of_the_newest_weights(corridor, tmp_path, monkeypatch, deterministic):
    rolling = {**AHEAD, "ahead": 3, "deterministic": deterministic}
    config = corridor(rollout=rolling, training={"iterations": 4}, evaluation={"every": 1})
    observed = []
    original = AheadCollector.paused

    def paused(self):
        context, engine = original(self), trainer.sampler.engine

        class Watched:
            def __enter__(inner):
                context.__enter__()
                pairs = zip(engine.model.parameters(), trainer.learner.model.parameters(), strict=True)
                observed.append(
                    all(bool((a == b).all()) for a, b in pairs) and engine.model is not trainer.learner.model
                )

            def __exit__(inner, *error):
                return context.__exit__(*error)

        return Watched()

    monkeypatch.setattr(AheadCollector, "paused", paused)
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    trainer.run()
    assert observed == [True] * 6  # the sixth is of the average: the weights in training hold it meanwhile


def test_episodes_that_are_too_old_are_dropped_and_played_again(corridor, tmp_path, monkeypatch):
    """One episode of each of the first groups is held back for a few updates."""
    config = corridor(
        rollout={**AHEAD, "ahead": 2, "max_staleness": 2, "tasks": 2, "group_size": 2, "deterministic": False},
        training={"iterations": 8},
    )
    late = {}
    original = RolloutLoop._take_ready

    def called(self):
        slots = original(self)
        if not isinstance(self.source, StreamSource):  # an evaluation
            return slots
        version = self.source.thread.version
        for slot in slots:
            group, sample = self.sink._origins[slot]
            if group.place == 1 and not group.attempts[sample] and version < 3:
                late[slot] = True
        held = [slot for slot in slots if slot in late and version < 3 and self.states[slot].episode.turns]
        self._ready += held
        return [slot for slot in slots if slot not in held]

    monkeypatch.setattr(RolloutLoop, "_take_ready", called)
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
    training = {"iterations": 6, "save_every": 1, "max_checkpoints": 6}
    full = run(corridor(rollout={**AHEAD, "ahead": 2, "deterministic": False}, training=training), tmp_path / "whole")
    killed = killed_after(3, full, tmp_path)
    state = checkpoints.latest(killed / "checkpoints").state()
    assert 0 < len(state["due"]) <= 12 and state["position"] - len(state["due"]) == 4 * 3
    train(RunFolder.open(killed), quiet=True)
    rows = RunFolder.open(killed).metrics()
    assert [row["iteration"] for row in rows] == list(range(1, 7))
    assert rows[3]["staleness_max"] == 0  # nothing sampled before the kill was kept
    total = sum((tasks for tasks, _ in trained_tasks(killed)), Counter())
    assert total == {f"door-{door:02d}": 18 for door in range(8)}


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


def test_dynamic_sampling_goes_on_with_further_tasks(corridor, tmp_path):
    config = corridor(algorithm="dapo", rollout=AHEAD, training={"iterations": 2})
    folder = run(config, tmp_path / "run")
    rows = folder.metrics()
    assert len(rows) == 2 and all(1 <= row["sampling_rounds"] <= 10 for row in rows)
    for path in sorted((folder.path / "episodes").glob("train-*.jsonl")):
        groups = Counter((row["group"], row["task"]) for row in read_episodes(path))
        assert set(groups.values()) == {6}


@pytest.mark.parametrize("algorithm,lora", [("apmpo", None), ("ppo_turn", {"rank": 2})])
def test_controllers_critics_and_adapters_go_with_it(corridor, tmp_path, algorithm, lora):
    config = corridor(
        algorithm=algorithm, rollout=AHEAD, lora=lora, training={"iterations": 2}, evaluation={"before": False}
    )
    rows = run(config, tmp_path / "run").metrics()
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)


REFUSED = {
    "agpo": ({"algorithm": "agpo_adaptive"}, "rollout.ahead", "controllers.agpo"),
    "workers": ({"rollout": {"ahead": 1, "workers": 0}}, "rollout.workers", "workers=1"),
    "staleness": ({"rollout": {"ahead": 3, "workers": 1, "max_staleness": 2}}, "rollout.ahead", "max_staleness"),
}


@pytest.mark.parametrize(("changes", "key", "name"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_go_with_it_is_refused_in_one_line(corridor, changes, key, name):
    with rejects(SettingsError, name, key=key):
        load(corridor(**{"rollout": AHEAD, **changes}))


def test_several_processes_sample_ahead_but_not_on_their_own_gpus(corridor):
    require_fitting(load(corridor(rollout={**AHEAD, "tasks": 3})), 2)  # the first rank samples all groups
    settings = load(corridor(rollout=AHEAD, engine="vllm"))
    require_fitting(settings, 2)  # on a CPU they share it anyway
    settings = settings.model_copy(update={"device": "cuda"})
    with rejects(SettingsError, key="rollout.ahead", advice="engine=vllm engine.options={replicas: 1, gpus"):
        require_fitting(settings, 2)
    elsewhere = {"name": "vllm", "options": {"gpus": [6]}}
    require_fitting(load(corridor(rollout=AHEAD, engine=elsewhere)).model_copy(update={"device": "cuda"}), 2)


def test_the_correction_is_for_older_weights_unless_another_is_named(corridor):
    assert resolve(load(corridor())).algorithm.correction.name == "none"
    assert resolve(load(corridor(rollout=AHEAD))).algorithm.correction.name == "tis"
    for name in ("none", "recompute", "icepop"):
        algorithm = {"preset": "gagpo", "correction": {"name": name}}
        assert resolve(load(corridor(rollout=AHEAD, algorithm=algorithm))).algorithm.correction.name == name


# Lockstep: a function of the seed ------------------------------------------------------------------------------------

RUNS = {"two batches": {"ahead": 2}, "mixture, dynamic sampling": {**MIXED, "algorithm": DYNAMIC}}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_killed_after_any_iteration_it_ends_bit_equal(corridor, tmp_path, changes):
    changes = dict(changes)
    ahead, iterations = changes.pop("ahead", 1), 4
    config = corridor(
        **changes,
        rollout={**SMALL, "ahead": ahead},
        training={"iterations": iterations, "save_every": 1, "max_checkpoints": iterations},
        evaluation={"tasks": 2, "every": 2, "before": False},
    )
    full = run(config, tmp_path / "whole")
    old = [row["staleness_max"] for row in full.metrics()]
    assert changes.get("algorithm") is DYNAMIC or old == [min(ahead, number) for number in range(iterations)]
    for done in range(1, iterations):
        segment = killed_after(done, full, tmp_path)
        train(RunFolder.open(segment), quiet=True)
        require_equal(RunFolder.open(segment), full)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_bit_equal(corridor, tmp_path):
    config = corridor(**MIXED, rollout=SMALL, training={"iterations": 8, "save_every": 3})
    full = run(config, tmp_path / "whole")
    require_equal(killed_and_resumed(config, tmp_path / "runs", rows=4), full)


def test_an_interrupted_run_keeps_what_older_weights_have_sampled(corridor, tmp_path, monkeypatch):
    """Ctrl-C in the middle of the next collection: its batch is part of the checkpoint."""
    config = corridor(rollout=SMALL, training={"iterations": 4, "save_every": 4})
    full = run(config, tmp_path / "whole")
    original = BatchBuilder._select

    def interrupted(self, episodes):
        if trainer.iteration == 2:
            raise KeyboardInterrupt
        return original(self, episodes)

    folder = RunFolder.create(tmp_path / "part", load(config))
    trainer = Trainer(folder, quiet=True)
    monkeypatch.setattr(BatchBuilder, "_select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    monkeypatch.undo()
    assert not any(thread.name == "sampling" for thread in threading.enumerate())
    saved = checkpoints.latest(folder.path / "checkpoints")
    assert saved.iteration == 2 and len(saved.state()["due"]) == 8
    train(RunFolder.open(folder.path), quiet=True)
    require_equal(folder, full)


def test_what_was_not_finished_in_time_is_played_by_newer_weights(corridor, tmp_path):
    """Each place is trained on once all the same."""
    config = corridor(rollout=SMALL, training={"iterations": 3, "save_every": 1, "max_checkpoints": 3})
    full = run(config, tmp_path / "whole")
    segment = killed_after(1, full, tmp_path)
    (saved,) = checkpoints.checkpoints(segment / "checkpoints")
    state = saved.state()
    folder = RunFolder.open(segment)
    trainer = Trainer(folder, quiet=True)
    buffer = trainer.collector.buffer
    assert [group.version for group in buffer.groups] == [0] * 4 and len(buffer.due) == 4
    assert trainer.collector.buffer.state_dict()["due"] == state["due"] == list(range(4, 12))
    buffer.groups.clear()
    buffer._complete.clear()
    buffer.due = list(state["due"])
    trainer.run()
    assert [row["staleness_max"] for row in folder.metrics()][1:] == [0, 1]
    assert checkpoints.latest(segment / "checkpoints").state()["due"] == []


def test_a_damaged_file_is_named(corridor, tmp_path):
    full = run(corridor(rollout=SMALL, training={"iterations": 2, "save_every": 1}), tmp_path / "run")
    saved = checkpoints.checkpoints(full.path / "checkpoints")[0]
    path = saved.path / checkpoints.SAMPLED
    path.write_bytes(path.read_bytes()[:100])
    with rejects(CheckpointError, "read", where="sampled.npz"):
        load = Trainer(RunFolder.open(full.path), quiet=True).collector.load_sampled
        saved.read(SampledEntry(None, load))


class _Idle:
    """A sampling thread that is not stopped."""

    version = 3

    def check(self):
        pass


@pytest.mark.parametrize("prompts", [[None, "left"], [None, None], ["left", None]])
def test_a_rejected_request_of_a_program_is_collected_with_the_sampled_ones(tiny, monkeypatch, prompts):
    """No engine answers it, so nothing may wait for one."""
    model, tokenizer = tiny
    context = Context(tokenizer, find_prompt("plain"))
    agent = LanguageAgent(TransformersEngine(model, tokenizer), context, Sampling(1.0, 2))
    ask = context.ask
    monkeypatch.setattr(
        context,
        "ask",
        lambda turns, text, info: ask(turns, text, info) if text else RejectedRequest(400, "not rendered"),
    )
    states = [EpisodeState(slot, Episode("a"), text or "") for slot, text in enumerate(prompts)]
    versioned = VersionedAgent(agent, _Idle())
    for turns in (agent.decide(states), versioned.decide(states)):
        assert [turn.sampled for turn in turns] == [text is not None for text in prompts]
        assert all("not rendered" in turn.completion for turn in turns if not turn.sampled)
    assert {turn.version for turn in turns if turn.sampled} <= {3}
