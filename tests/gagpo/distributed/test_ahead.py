"""Ranks train while the first one samples for all: task order, staleness, batches, kills and resumes."""

import json
import signal
import time
from collections import Counter

import numpy as np
import pytest

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.idle import IdleEngine
from gagpo.agents.rollout import Clock
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.collector import Collection
from gagpo.collecting.first_rank import collection_bytes, collection_of
from gagpo.data import Episode, Turn
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.weights import named_tensors
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from tests.gagpo.distributed.conftest import (
    EPSILON,
    WORKER,
    start_ranks,
    states,
    timeless,
    train_in_one,
    weights,
    write_config,
)
from tests.rejections import rejects

AHEAD = {"workers": 1, "ahead": 1, "deterministic": False}
ITERATIONS = 3


def started(count, config, run):
    """So many ranks that train ``config`` in the folder ``run``, or continue it."""
    jobs = run.parent / f"{run.name}.json"
    jobs.write_text(json.dumps({"epsilon": EPSILON, "runs": [[str(config), str(run), None]]}))
    return start_ranks([WORKER, jobs], count)


def ended(ranks):
    """Exit statuses and output of ranks."""
    try:
        outputs = [process.communicate(timeout=550)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [process.returncode for process in ranks], "\n".join(outputs)


def train_in(count, config, run):
    statuses, output = ended(started(count, config, run))
    assert statuses == [0] * count, output


def require_every_task_in_turn(run, iterations):
    """Each task has been trained on equally often up to one group, and no turn of it was too old or from the future."""
    rows, tasks = RunFolder.open(run).metrics(), Counter()
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    for row in rows:
        lines = (run / "episodes" / f"train-{row['iteration']:04d}.jsonl").read_text().splitlines()
        episodes = [episode for episode in map(json.loads, lines) if episode["kept"]]
        behind = [row["iteration"] - 1 - turn["version"] for episode in episodes for turn in episode["turns"]]
        assert min(behind) >= 0 and row["staleness_max"] == max(behind) <= 2
        assert np.isfinite(row["loss"]) and row["mismatch_kl"] < 1
        tasks.update(episode["task"] for episode in episodes)
    assert len(tasks) == 8 and max(tasks.values()) - min(tasks.values()) <= 6  # the samples of one group
    return rows


@pytest.mark.slow
def test_servers_fewer_than_ranks_sample_while_all_train_and_one_process_goes_on(serving, tmp_path, warm_model):
    """Two servers, three ranks; then one process with the same two servers."""
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    run = tmp_path / "run"
    with serving(model, tokenizer, count=2) as fakes:
        engine = {"name": "vllm", "options": {"urls": [fake.url for fake in fakes], "health_timeout": 60.0}}
        training = {"iterations": 3, "save_every": 1, "save_episodes_every": 1}
        rollout = {**AHEAD, "max_staleness": 2}
        config = write_config(tmp_path, warm_model, engine=engine, rollout=rollout, training=training)
        train_in(3, config, run)
        assert all(fake.asked for fake in fakes)
        rows = require_every_task_in_turn(run, 3)
        assert rows[0]["staleness_max"] == 0 and any(row["staleness_max"] > 0 for row in rows)
        RunFolder.open(run).change(["training.iterations=5"])
        train_in_one([(config, run, None)])
    require_every_task_in_turn(run, 5)
    assert len(checkpoints.latest(run / "checkpoints").state()["due"]) <= 8
    assert {path.stem for path in (run / "evals").glob("*.json")} >= {"after-test"}


@pytest.mark.slow
def test_two_ranks_with_two_servers_are_killed_and_end_bit_equal(serving, tmp_path, warm_model):
    """Deterministic batches: two ranks that were killed, and two that were not, end with the same bits."""
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=2) as fakes:
        engine = {"name": "vllm", "options": {"urls": [fake.url for fake in fakes], "health_timeout": 60.0}}
        training = {"iterations": ITERATIONS, "save_every": 1}
        config = write_config(
            tmp_path, warm_model, engine=engine, rollout={"workers": 1, "ahead": 1}, training=training
        )
        train_in(2, config, tmp_path / "whole")
        ranks = started(2, config, tmp_path / "killed")
        until = time.monotonic() + 500
        while not checkpoints.latest(tmp_path / "killed" / "checkpoints") and time.monotonic() < until:
            time.sleep(0.1)
        for process in ranks:
            process.send_signal(signal.SIGKILL)
        ended(ranks)
        saved = checkpoints.latest(tmp_path / "killed" / "checkpoints")
        assert saved and saved.iteration < ITERATIONS
        train_in(2, config, tmp_path / "killed")
    item, two = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(bool((item[name] == two[name]).all()) for name in item)
    item, two = states(tmp_path / "whole"), states(tmp_path / "killed")
    assert item.keys() == two.keys() and all(bool((item[name] == two[name]).all()) for name in item)
    rows = [timeless(RunFolder.open(tmp_path / name).metrics()) for name in ("whole", "killed")]
    keys = ("loss", "success_rate", "staleness_mean", "train_tokens")
    assert [[row.get(key) for key in keys] for row in rows[0]] == [[row.get(key) for key in keys] for row in rows[1]]
    assert rows[0][-1]["staleness_max"] == 1


@pytest.mark.slow
def test_an_error_of_the_sampling_thread_ends_all_ranks_with_its_words(serving, tmp_path, warm_model):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=1) as (fake,):
        engine = {"name": "vllm", "options": {"urls": [fake.url], "health_timeout": 2.0}}
        config = write_config(tmp_path, warm_model, engine=engine, rollout=AHEAD, training={"iterations": 50})
        generate, requests = fake.generate, []

        def dies(body):
            requests.append(body)
            if len(requests) > 150:
                fake.gone = True
            return generate(body)

        fake.generate = dies
        statuses, output = ended(started(2, config, tmp_path / "run"))
    assert all(statuses) and "no vLLM server is left" in output


@pytest.mark.slow
def test_the_first_ranks_own_engine_samples_for_all(tmp_path, warm_model):
    training = {"iterations": 3, "save_every": 2, "save_episodes_every": 1}
    config = write_config(tmp_path, warm_model, rollout={**AHEAD, "max_staleness": 2}, training=training)
    train_in(2, config, tmp_path / "run")
    require_every_task_in_turn(tmp_path / "run", 3)


def test_a_collection_arrives_as_it_was():
    ids = np.arange(2, dtype=np.int32)
    sampled = [
        Episode(f"t{n}", group=n, turns=[Turn("a", "b", "c", version=n, prompt_ids=ids, response_ids=ids)])
        for n in range(3)
    ]
    collection = Collection(
        sampled[1:],
        sampled,
        stale_episodes=[Episode("old")],
        rounds=2,
        clock=Clock(1.0, 2.0, 3.0),
        stats={"staleness_mean": 0.5},
    )
    arrived = collection_of(collection_bytes(collection))
    pairs = zip(arrived.episodes, arrived.sampled_episodes[1:], strict=True)
    assert [trained is episode for trained, episode in pairs] == [True, True]
    assert [turn.version for episode in arrived.sampled_episodes for turn in episode.turns] == [0, 1, 2]
    assert [episode.task for episode in arrived.stale_episodes] == ["old"] and arrived.rounds == 2
    assert arrived.stats == {"staleness_mean": 0.5} and vars(arrived.clock) == vars(collection.clock)
    assert not arrived.probe_episodes


def test_a_rank_that_does_not_sample_reads_weights_and_rejects_requests(tiny):
    engine = IdleEngine(*tiny, None, "float32")
    passed = []
    engine.load_weights((passed.append(name) or (name, tensor)) for name, tensor in named_tensors(tiny[0]))
    assert len(passed) == len(list(tiny[0].named_parameters()))
    assert engine.generate([], Sampling()) == [] and engine.collect() == []
    with rejects(InvalidArgument, key="rollout.ahead"):
        engine.generate([Request(0, np.arange(3, dtype=np.int32), 0)], Sampling())
