"""Ranks train while the first one samples for all: task order, staleness, batches."""

import json
import subprocess
from collections import Counter

import numpy as np
import pytest

from gagpo.agents.engines.base import IdleEngine, Request, Sampling
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.episodes import Episode, Turn, read_episodes
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.rollout import Clock
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.ahead import collection_bytes, collection_of
from gagpo.collecting.collector import Collection
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from tests.agents.engines.remote.fake_server import serving
from tests.gagpo.distributed.conftest import EPSILON, WORKER, start_ranks, train_in_one, write_config

AHEAD = {"workers": 1, "ahead": 1, "lockstep": False}


def train_in(count, jobs, folder):
    """Train every (config, folder) with so many ranks; what they said."""
    listed = folder / "jobs.json"
    runs = [[str(config), str(place), None] for config, place in jobs]
    listed.write_text(json.dumps({"epsilon": EPSILON, "runs": runs}))
    ranks = start_ranks([WORKER, listed], count)
    try:
        outputs = [process.communicate(timeout=400)[0] for process in ranks]
    except subprocess.TimeoutExpired:
        for process in ranks:
            process.kill()
        raise
    return [process.returncode for process in ranks], "\n".join(outputs)


def require_every_task_in_turn(folder, iterations):
    """Each task has been trained on equally often, and no turn of it was too old or from the future."""
    rows, tasks = RunFolder.open(folder).metrics(), Counter()
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    for row in rows:
        kept = [
            one for one in read_episodes(folder / "episodes" / f"train-{row['iteration']:04d}.jsonl") if one["kept"]
        ]
        behind = [row["iteration"] - 1 - turn["version"] for one in kept for turn in one["turns"]]
        assert min(behind) >= 0 and row["staleness_max"] == max(behind) <= 2
        assert np.isfinite(row["loss"]) and row["mismatch_kl"] < 1
        tasks.update(one["task"] for one in kept)
    assert tasks == {f"door-{door:02d}": 3 * iterations for door in range(8)}
    return rows


@pytest.mark.slow
def test_servers_fewer_than_ranks_sample_while_all_train_and_one_process_goes_on(tmp_path, warm_model):
    """Two servers, three ranks; then one process with the same two servers; then two ranks."""
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=2) as fakes:
        engine = {"name": "vllm", "options": {"urls": [fake.url for fake in fakes], "silence": 60.0}}
        config = write_config(
            tmp_path,
            warm_model,
            engine=engine,
            rollout={**AHEAD, "max_staleness": 2},
            training={"iterations": 4, "save_every": 1, "keep_episodes": 1},
        )
        statuses, said = train_in(3, [(config, tmp_path / "run")], tmp_path)
        assert statuses == [0, 0, 0], said
        assert all(fake.asked for fake in fakes)
        rows = require_every_task_in_turn(tmp_path / "run", 4)
        assert rows[0]["staleness_max"] == 0 and any(row["staleness_max"] > 0 for row in rows)
        RunFolder.open(tmp_path / "run").change(["training.iterations=6"])
        train_in_one([(config, tmp_path / "run", None)])
        require_every_task_in_turn(tmp_path / "run", 6)
        RunFolder.open(tmp_path / "run").change(["training.iterations=8"])
        statuses, said = train_in(2, [(config, tmp_path / "run")], tmp_path)
        assert statuses == [0, 0], said
    require_every_task_in_turn(tmp_path / "run", 8)
    assert len(checkpoints.latest(tmp_path / "run" / "checkpoints").state()["due"]) <= 8
    assert {path.stem for path in (tmp_path / "run" / "evals").glob("*.json")} >= {"after-test"}


def test_an_error_of_the_sampling_thread_ends_all_ranks_with_its_words(tmp_path, warm_model):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=1) as (fake,):
        engine = {"name": "vllm", "options": {"urls": [fake.url], "silence": 2.0}}
        config = write_config(tmp_path, warm_model, engine=engine, rollout=AHEAD, training={"iterations": 50})
        generate, asked = fake.generate, []

        def dies(body):
            asked.append(body)
            if len(asked) > 150:
                fake.gone = True
            return generate(body)

        fake.generate = dies
        statuses, said = train_in(2, [(config, tmp_path / "run")], tmp_path)
    assert all(statuses) and "no vLLM server is left" in said


@pytest.mark.slow
def test_the_first_ranks_own_engine_samples_for_all(tmp_path, warm_model):
    training = {"iterations": 4, "save_every": 2, "keep_episodes": 1}
    config = write_config(tmp_path, warm_model, rollout={**AHEAD, "max_staleness": 2}, training=training)
    statuses, said = train_in(2, [(config, tmp_path / "run")], tmp_path)
    assert statuses == [0, 0], said
    require_every_task_in_turn(tmp_path / "run", 4)


def test_a_collection_arrives_as_it_was():
    played = [Episode(f"t{n}", group=n, turns=[Turn("a", "b", "c", version=n)]) for n in range(3)]
    for episode in played:
        for turn in episode.turns:
            turn.prompt_ids = turn.response_ids = np.arange(2, dtype=np.int32)
    found = Collection(
        played[1:], played, stale=[Episode("old")], rounds=2, clock=Clock(1.0, 2.0, 3.0), stats={"x": 0.5}
    )
    other = collection_of(collection_bytes(found))
    assert [one is two for one, two in zip(other.episodes, other.played[1:], strict=True)] == [True, True]
    assert [turn.version for one in other.played for turn in one.turns] == [0, 1, 2]
    assert [one.task for one in other.stale] == ["old"] and other.rounds == 2 and other.stats == {"x": 0.5}
    assert vars(other.clock) == vars(found.clock) and not other.probe


def test_a_rank_that_does_not_sample_says_so(tiny):
    engine = IdleEngine(*tiny, None, "float32")
    passed = []
    engine.load_weights((passed.append(name) or (name, tensor)) for name, tensor in named_tensors(tiny[0]))
    assert len(passed) == len(list(tiny[0].named_parameters()))
    assert engine.generate([], Sampling()) == [] and engine.collect() == []
    with pytest.raises(InvalidArgument, match="the first rank samples for all"):
        engine.generate([Request(0, np.arange(3, dtype=np.int32), 0)], Sampling())
