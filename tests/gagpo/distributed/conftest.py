"""Two processes that train together, and a comparison of their run with that of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from gagpo.base.child import free_port
from gagpo.learning import optimizer
from gagpo.model import logprobs
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train
from tests.gagpo.conftest import CORRIDOR

WORKER = Path(__file__).with_name("worker.py")
GENTLE = {"optimizer": {"learning_rate": 1e-3}, "evaluation": {"tasks": 2, "before": False}}
"""Small steps, with a larger epsilon than usual: AdamW makes whole ones of gradients that are nothing but rounding."""
EPSILON = 1e-6


def start_ranks(command, count=2, **more):
    """The processes of ``command``, as torchrun would start them."""
    location = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = []
    for rank in range(count):
        names = {**location, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1, **more}
        environment = {**os.environ, **{name: str(value) for name, value in names.items()}}
        processes.append(
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def train_in_two(jobs, folder, count=2, **more):
    """Train every (config, folder, logits at a time or None) with two ranks, or ``count``."""
    listed = folder / "jobs.json"
    runs = [[str(config), str(location), chunk] for config, location, chunk in jobs]
    listed.write_text(json.dumps({"epsilon": EPSILON, "runs": runs}))
    ranks = start_ranks([WORKER, listed], count, **more)
    outputs = [process.communicate(timeout=1500)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * count, "\n".join(outputs)


def train_in_one(jobs):
    usual, optimizer.EPSILON, before = logprobs.CHUNK, EPSILON, optimizer.EPSILON
    for config, location, chunk in jobs:
        path, logprobs.CHUNK = Path(location), chunk or usual
        there = (path / "config.yaml").exists()
        train(RunFolder.open(path) if there else RunFolder.new(path, load(config)), quiet=True)
    logprobs.CHUNK, optimizer.EPSILON = usual, before


def write_config(folder, model, **changes):
    values = {**CORRIDOR, "model": model}
    for section, value in {**GENTLE, **changes}.items():
        values[section] = {**values.get(section, {}), **value} if isinstance(value, dict) else value
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def weights(folder):
    saved = checkpoints.latest(Path(folder) / "checkpoints")
    name = "model.safetensors" if (saved.path / "model" / "model.safetensors").exists() else "adapter_model.safetensors"
    return load_file(str(saved.path / "model" / name))


def states(folder, part="optimizer"):
    """The whole tensors of a checkpoint's part, whoever wrote it."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    from gagpo.distributed.ranks import Ranks
    from gagpo.distributed.states import read, stored_names

    saved = checkpoints.latest(Path(folder) / "checkpoints")
    if not (saved.path / part).exists():
        return {}
    metadata = HuggingFaceStorageReader(str(saved.path / part)).read_metadata().state_dict_metadata
    assert metadata.keys() == stored_names(saved.path / part)
    tensors = {name: torch.zeros(item.size, dtype=item.properties.dtype) for name, item in metadata.items()}
    read(tensors, saved.path / part, Ranks())
    return tensors


def require_close(one, two, atol):
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value.numpy(), two[name].numpy(), atol=atol, rtol=0, err_msg=name)


def timeless(rows):
    clock = ("seconds", "per_second", "busy", "restarts")
    return [{key: value for key, value in row.items() if not any(word in key for word in clock)} for row in rows]


def require_same_run(one, two):
    """The same weights, states, numbers and results, from the same episodes. States agree to 1e-5.

    Weights agree to a hundredth of one step. Where a gradient is as small as ``EPSILON``, AdamW turns its rounding into
    a part of a step, so the difference grows with the learning rate.

    Responses are compared first. The weights of one process and two ranks differ by rounding, which moves the edges
    between tokens in the sampler's cumulative distribution: one draw in about 80,000 picks another token here, and the
    runs take different episodes from there. ``test_updates.py`` compares updates on given episodes.
    """
    responses = [sampled_responses(folder) for folder in (one, two)]
    assert responses[0] == responses[1], "the runs sampled different tokens"
    require_close(weights(one), weights(two), RunFolder.open(one).settings.optimizer.learning_rate / 100)
    for segment in ("optimizer", "critic"):
        require_close(states(one, segment), states(two, segment), 1e-5)
    rows = [timeless(RunFolder.open(folder).metrics()) for folder in (one, two)]
    assert len(rows[0]) == len(rows[1])
    for row, other in zip(*rows, strict=True):
        assert row.keys() == other.keys()
        for key, value in row.items():
            if key == "train_tokens_read":  # a tree that is dealt out in parts is read by each from its beginning
                continue
            assert value == pytest.approx(other[key], abs=2e-4, rel=2e-3), key
    for type_name in ("evals/after-test.json", "episodes/after-test.jsonl"):
        assert (one / type_name).read_text() == (two / type_name).read_text()


def sampled_responses(folder):
    """The tokens of every training iteration whose episodes were written."""
    files = sorted((Path(folder) / "episodes").glob("train-*.jsonl"))
    assert files
    return {
        file.name: [[turn["tokens"]["text"] for turn in json.loads(line)["turns"]] for line in file.open()]
        for file in files
    }
