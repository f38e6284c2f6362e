"""Training in environments on a `gagpo serve` server: equal episodes, equal tasks, and a whole run."""

import json
import signal

import pytest

pytest.importorskip("openenv")

from typer.testing import CliRunner

from benchmarks.serve import start, stop
from gagpo.agents.setup import make_env, tasks_of
from gagpo.cli.main import app
from gagpo.envs.pool import WorkerPool
from gagpo.envs.remote.pool import RemotePool, open_pool

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
CHECKED = ("task", "task_type", "split", "turn", "success", "valid")


@pytest.fixture(scope="module")
def url():
    server, address = start(CORRIDOR, '{"port": 0, "workers": 2, "max_sessions": 50, "admissible": true}')
    yield address
    assert stop(server) in (0, 130, -signal.SIGINT)


def numbers_of(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert lines
    kinds = ("loss", "rollout/reward", "eval")
    return [{key: value for key, value in json.loads(line).items() if key.startswith(kinds)} for line in lines]


def walk(pool, tasks):
    """The events of an episode per task, all walking left."""
    for slot, task in enumerate(tasks):
        pool.reset(slot, task, seed=slot)
    played = {slot: [] for slot in range(len(tasks))}
    running = len(tasks)
    while running:
        for event in pool.wait(60):
            facts = {name: event.info[name] for name in CHECKED}
            played[event.slot].append((event.kind, event.observation, event.reward, event.terminated, facts))
            if event.terminated or event.truncated or len(played[event.slot]) > 20:
                running -= 1
            else:
                pool.step(event.slot, "left")
    return played


def test_tasks_and_episodes_are_those_of_the_env_itself(url):
    here, there = make_env(CORRIDOR), make_env(url)
    for split in ("train", "test"):
        assert tasks_of(there, split).hash == tasks_of(here, split).hash
    tasks = [*tasks_of(here, "train").ids, *tasks_of(here, "test").ids]
    with WorkerPool(CORRIDOR, workers=0) as local, open_pool(url) as remote:
        assert isinstance(remote, RemotePool)
        assert walk(remote, tasks) == walk(local, tasks)


def test_a_run_is_trained_there_and_is_the_run_that_is_trained_here(url, corridor, tmp_path):
    """Losses, rewards and panels agree to the last bit: an environment elsewhere is the same environment."""
    for name, place in (("here", CORRIDOR), ("there", url)):
        config = corridor(name=name, environment={"id": place, "kwargs": {}}, rollout={"samples": 3})
        result = CliRunner().invoke(app, ["train", str(config), "--runs", str(tmp_path), "--quiet"])
        assert result.exit_code == 0, result.output
    assert numbers_of(tmp_path / "here") == numbers_of(tmp_path / "there")


def test_an_evaluation_names_a_server(url):
    result = CliRunner().invoke(app, ["eval", "random", "--env", url, "--split", "test", "--tasks", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert 0 <= json.loads(result.stdout.splitlines()[-1])["success_rate"] <= 1 and "test" in result.output
    gone = CliRunner().invoke(app, ["eval", "random", "--env", "http://127.0.0.1:9", "--split", "test"])
    assert gone.exit_code != 0 and "127.0.0.1:9" in str(gone.exception or gone.output)
