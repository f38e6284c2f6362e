"""Whole runs with tool calls: demonstrations, training, files and evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from gagpo.data.episodes import read_episodes
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.sft.run import sft
from gagpo.training.trainer import train
from tests.gagpo.conftest import CORRIDOR

SERVER = Path(__file__).parents[2] / "envs" / "mcp" / "arithmetic_server.py"


def learned(tmp_path, **changes):
    """Warm start and two iterations; gives the run and the episodes of its last iteration."""
    sections = {name: {**CORRIDOR.get(name, {}), **value} for name, value in changes.items()}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**CORRIDOR, "model": str(tmp_path / "model"), **sections}))
    sft(load(config), quiet=True)
    run = RunFolder.create(tmp_path / "run", load(config))
    train(run, quiet=True)
    return run, list(read_episodes(sorted((run.path / "episodes").glob("train-*.jsonl"))[-1]))


SMALL = {"num_layers": 1, "hidden_size": 64, "vocab_size": 320}


def require_calls(run, episodes):
    """Whatever so small a model says is read as calls, told what is wrong with it, and trained on as it was sampled."""
    turns = [turn for episode in episodes for turn in episode["turns"]]
    assert turns and all(turn["calls"] for turn in turns)
    for turn in turns:
        assert turn["valid"] or turn["action"] or turn["calls"][0]["error"]
    rows = run.metrics()
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) for row in rows)
    assert all(abs(row["mismatch_kl"]) < 1e-6 for row in rows), "sampler and trainer read the same tokens"


@pytest.mark.slow
def test_a_text_env_is_learned_through_act(tmp_path):
    warm = {**CORRIDOR["sft"], "noise": 0.1, "steps": 20, "model": SMALL}
    rollout = {"tasks": 2, "group_size": 2, "max_tokens": 48, "workers": 0}
    context = {"prompt": "tools", "history": "full"}
    environment = {**CORRIDOR["environment"], "kwargs": {"max_turns": 14}}
    run, episodes = learned(
        tmp_path, context=context, environment=environment, rollout=rollout, sft=warm, evaluation={"tasks": 1}
    )
    require_calls(run, episodes)
    (result,) = [json.loads(path.read_text()) for path in (run.path / "evals").glob("after-*.json")]
    assert (
        result["panel"]["conditions"]["prompt"].startswith("tools ")
        and result["panel"]["conditions"]["calls"] == "hermes"
    )


@pytest.mark.slow
def test_the_tools_of_an_mcp_server_are_learned(tmp_path):
    pytest.importorskip("mcp", reason="the optional package mcp is not installed")
    rows = []
    for number in range(10):
        call = {"name": "add", "arguments": {"a": number, "b": 1}}
        row = {"question": f"{number} + 1", "answer": number + 1, "calls": [call], "id": f"sum-{number}"}
        rows.append({**row, "split": "test" if number > 7 else "train"})
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kwargs = {"command": ["python", str(SERVER)], "tasks": str(tmp_path / "sums.jsonl")}
    environment = {"id": "gagpo/MCP-v0", "kwargs": {**kwargs, "start_timeout": 120.0, "max_turns": 3}}
    warm = {**CORRIDOR["sft"], "noise": 0.0, "steps": 20, "model": SMALL}
    rollout = {"tasks": 2, "group_size": 2, "max_tokens": 64, "workers": 1, "step_timeout": 200.0}
    context = {"prompt": "tools", "history": "full"}
    run, episodes = learned(
        tmp_path, context=context, environment=environment, rollout=rollout, sft=warm, evaluation={"tasks": 1}
    )
    require_calls(run, episodes)
