"""Runs whose episodes are programs: sampled ahead, on two ranks, by vLLM servers, and killed in mid iteration."""

import json
import os

import numpy as np
import psutil
import pytest

pytest.importorskip("uvicorn")

from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.run_folder import RunFolder
from gagpo.training.trainer import train
from tests.gagpo.distributed.conftest import require_same_run, train_in_one, train_in_two
from tests.gagpo.training.resuming import killed_after, killed_and_resumed, require_equal
from tests.gagpo.training.test_trainer import run

WALKER = """
import os
from gagpo.envs.testing import CorridorEnv

ENV = CorridorEnv(max_turns=4)

async def play(task, client):
    seen, info = ENV.reset(seed=int(os.environ["GAGPO_SEED"]), options={"task": task["id"]})
    begun, over = ENV.place, False
    while not over:
        said = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": seen}], extra_headers={"X-State": info["state"]}
        )
        seen, _, ended, cut, info = ENV.step(said.choices[0].message.content)
        over = ended or cut
    return {"reward": float(begun - ENV.place)}
"""


@pytest.fixture
def walking(corridor, tmp_path, monkeypatch):
    """Write a config in which a program walks along the corridor, and its files; gives its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walker.py").write_text(WALKER)
    rows = [{"id": f"door-{door:02d}", "split": "train" if door < 8 else "test"} for door in range(12)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    program = {"id": "gagpo/Program-v0", "kwargs": {"agent": "walker:play", "tasks": "tasks.jsonl"}}

    def write(**changes):
        usual = {
            "rollout": {"group_size": 3},
            "training": {"iterations": 3, "max_checkpoints": 3},
            "evaluation": {"tasks": 2, "before": False},
        }
        for section, values in changes.items():
            usual[section] = {**usual.get(section, {}), **values}
        return corridor(environment=program, context={"history": "full"}, **usual)

    return write


def test_a_run_killed_in_mid_iteration_ends_bit_equal_and_leaves_no_program(walking, tmp_path):
    config = walking()
    full = run(config, tmp_path / "whole")
    killed = killed_and_resumed(config, tmp_path / "runs", 1)
    require_equal(killed, full)
    assert all(row["reward_mean"] > 0 and row["updates"] for row in full.metrics())
    here = {item.pid for item in psutil.process_iter(["cwd"]) if item.info["cwd"] == str(tmp_path)}
    assert here <= {os.getpid()}


@pytest.mark.parametrize("deterministic", [True, False])
def test_programs_are_sampled_ahead(walking, tmp_path, deterministic):
    config = walking(rollout={"ahead": 1, "deterministic": deterministic, "workers": 1})
    full = run(config, tmp_path / "whole")
    rows = full.metrics()
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["staleness_max"] == 1 or not deterministic  # without it, a slow program begins after the update
    assert all(np.isfinite(row["loss"]) and row["restarted_episodes"] == 0 for row in rows)
    folder = RunFolder.open(killed_after(1, full, tmp_path))
    train(folder, quiet=True)
    if deterministic:
        require_equal(folder, full)


@pytest.mark.slow
def test_two_ranks_have_a_gateway_each_and_do_what_one_does(walking, tmp_path):
    config = walking(training={"iterations": 2}, optimizer={"learning_rate": 1e-3})
    item, two = tmp_path / "of-1", tmp_path / "of-2"
    train_in_one([(config, item, None)])
    train_in_two([(config, two, None)], tmp_path)
    require_same_run(item, two)


def test_a_vllm_server_answers_programs(serving, walking, warm_model, tmp_path):
    with serving(load_model(warm_model), load_tokenizer(warm_model)) as (fake,):
        engine = {"name": "vllm", "options": {"urls": [fake.url], "health_timeout": 60.0}}
        config = walking(training={"iterations": 2}, engine=engine, evaluation={"splits": []})
        rows = run(config, tmp_path / "run").metrics()
        assert len(fake.asked) >= rows[-1]["turns_total"]  # and the checks of its weights
    assert [row["iteration"] for row in rows] == [1, 2] and all(row["engine_gap"] < 1e-4 for row in rows)
    assert all(row["updates"] and row["reward_mean"] > 0 for row in rows)
