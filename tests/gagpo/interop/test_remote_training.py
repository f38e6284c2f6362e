"""Training and evaluation in environments on an OpenEnv server."""

import hashlib
import json
import signal
import time

import pytest

pytest.importorskip("openenv")
pytest.importorskip("gagpo.envs.openenv")

from typer.testing import CliRunner

from benchmarks.serve import start, stop
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_env
from gagpo.base.errors import GagpoError
from gagpo.cli.main import app
from gagpo.envs.lookup import find_spec
from gagpo.envs.openenv.env import RemoteEnv
from gagpo.envs.openenv.errors import ServerFailed
from gagpo.envs.openenv.pool import SessionPool
from gagpo.envs.pool.opening import open_pool
from gagpo.model.loading import load_model, load_tokenizer
from tests.commands.pages import ROOT, blocks
from tests.rejections import rejects

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def url():
    options = {"port": 0, "workers": 2, "max_sessions": 50, "admissible": True, "kwargs": {"max_turns": 16}}
    server, address = start(CORRIDOR, json.dumps(options))
    yield address
    assert stop(server) in (0, 130, -signal.SIGINT)


def walk(pool, seeds):
    """The observations and rewards of an episode of door 3 per seed, all walking left."""
    played = {slot: [] for slot in range(len(seeds))}
    for slot, seed in enumerate(seeds):
        pool.reset(slot, "door-03", seed=seed)
    running = len(seeds)
    while running:
        for event in pool.wait(60):
            assert event.kind in ("reset", "step"), event.error
            played[event.slot].append((event.observation, event.reward, event.info["admissible_actions"]))
            if event.terminated or event.truncated or len(played[event.slot]) > 20:
                running -= 1
            else:
                pool.step(event.slot, "left")
    return played


def test_a_seed_fixes_the_episode(url):
    with open_pool(url, workers=2) as pool:
        played = walk(pool, [0, 1, 2, 3, 0, 1, 2, 3])
    assert [played[slot] for slot in range(4)] == [played[slot] for slot in range(4, 8)]
    assert len({played[slot][0][0] for slot in range(4)}) > 1, "different seeds, different tasks"
    assert "left" in played[0][0][2]


def test_a_run_is_trained_there(url, corridor, tmp_path):
    location = {"id": url, "kwargs": {}, "tasks": {"train": "0-19", "test": "20-29"}}
    config = corridor(name="there", environment=location, rollout={"group_size": 3})
    result = CliRunner().invoke(app, ["train", str(config), "--runs", str(tmp_path), "--quiet"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "there" / "metrics.jsonl").read_text().count("\n") >= 1


def trained(config, folder, *overrides):
    """The metrics of a run, its evaluation's task set, and the hash of its weights."""
    result = CliRunner().invoke(app, ["train", str(config), *overrides, "--runs", str(folder), "--quiet"])
    assert result.exit_code == 0, result.output or repr(result.exception)
    (run,) = folder.iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = sorted(run.glob("checkpoints/*/model/model.safetensors"))[-1].read_bytes()
    return run, rows, hashlib.sha256(weights).hexdigest()


def test_a_run_there_is_the_run_here(url, corridor, tmp_path):
    """Held-out tasks, state keys and success are those of the environment in this process: so are all weights."""
    config = corridor()
    _, rows_here, weights_here = trained(config, tmp_path / "here")
    address = [f"environment.id={url}", "environment.kwargs={}"]
    _, rows_there, weights_there = trained(config, tmp_path / "there", *address)
    assert weights_there == weights_here
    names = [name for name in rows_here[0] if name.startswith(("success", "return", "repeated_states", "test"))]
    assert names and all(
        here[name] == there[name] for here, there in zip(rows_here, rows_there, strict=True) for name in names
    )


def test_a_killed_server_costs_its_episodes_only(url, corridor, tmp_path, monkeypatch):
    """A run on two servers, one of which is killed in the middle of the first iteration."""
    options = {"port": 0, "workers": 0, "admissible": True, "kwargs": {"max_turns": 16}}
    doomed, second = start(CORRIDOR, json.dumps(options))
    changes = {"training": {"iterations": 3}, "evaluation": {"before": False, "splits": []}}
    config = corridor(environment={"id": f"{url},{second}", "kwargs": {}}, **changes)
    take = SessionPool._take
    answers = 0

    def take_and_kill(self, *answer):
        nonlocal answers
        answers += 1
        if answers == 60:  # 24 episodes have begun, and most go on
            doomed.kill()
            doomed.wait()
        take(self, *answer)

    monkeypatch.setattr(SessionPool, "_take", take_and_kill)
    _, rows, _ = trained(config, tmp_path / "runs")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert all(row["failed_episodes"] == 0 for row in rows), "no episode is lost"
    assert 1 <= rows[0]["restarted_episodes"] <= 12 and rows[1]["restarted_episodes"] == 0


def test_episodes_of_a_killed_server_start_over_on_the_other(warm_model, monkeypatch):
    """One of two server processes is killed during a rollout: no episode fails, and each ends as undisturbed."""
    options = json.dumps({"port": 0, "workers": 0, "admissible": True, "kwargs": {"max_turns": 16}})
    (doomed, first), (other, second) = start(CORRIDOR, options), start(CORRIDOR, options)
    take, answers, addresses = SessionPool._take, [], []

    def take_and_kill(self, number, env, answer):
        answers.append(answer)
        if len(answers) == 40:  # all 24 episodes have begun, and most go on
            doomed.kill()
            doomed.wait()
        addresses.append(env.session.url)
        take(self, number, env, answer)

    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    jobs = group_jobs([f"door-{door:02d}" for door in range(1, 9)], 3, seed=5)
    environment = make_env(CORRIDOR, {"max_turns": 16})
    try:
        rollouts = []
        for addresses_of_pool in (second, f"{first},{second}"):
            agent = language_agent(TransformersEngine(model, tokenizer), environment, Sampling(1.0, 3))
            with open_pool(addresses_of_pool, {}) as pool:
                episodes, _ = rollout(agent, pool, jobs)
                counters = pool.counters
            rollouts.append([(e.task, e.outcome, e.reward, [turn.response for turn in e.turns]) for e in episodes])
            monkeypatch.setattr(SessionPool, "_take", take_and_kill)
    finally:
        doomed.kill()
        stop(other)
    assert rollouts[0] == rollouts[1] and "failed" not in {outcome for _, outcome, *_ in rollouts[1]}
    assert 1 <= counters.restarts <= 12 and counters.failures == 0
    assert first in addresses[:40] and set(addresses[-20:]) == {second}


def test_an_evaluation_names_a_server(url):
    result = CliRunner().invoke(app, ["eval", "random", "--env", url, "--split", "test", "--tasks", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert 0 <= json.loads(result.stdout.splitlines()[-1])["success_rate"] <= 1 and "test" in result.output


def test_a_program_plays_a_served_environment_and_gets_its_reward(tmp_path, monkeypatch):
    """The agent of the page, over HTTP to its model and to ALFWorld: the episodes of our own loop in this process."""
    monkeypatch.chdir(tmp_path)
    (page,) = (block.text for block in blocks(ROOT / "docs" / "train-your-agent.md") if block.file == "distant.py")
    (tmp_path / "distant.py").write_text(page)
    here = {"size": "small", "max_turns": 15, "counts": {"train": 1, "valid_seen": 1, "valid_unseen": 6}}
    tasks = make_env("gagpo/ALFWorld-v0", here).tasks("valid_unseen").ids
    server, url = start("gagpo/ALFWorld-v0", json.dumps({"kwargs": here, "port": 0, "workers": 1}))
    try:
        rows = [{"id": block, "split": "test", "games": "valid_unseen", "server": url} for block in tasks]
        (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
        model, tokenizer = load_model("starter:alfworld"), load_tokenizer("starter:alfworld")
        there, played = {"agent": "distant:play", "tasks": "tasks.jsonl"}, []
        for name, kwargs in (("gagpo/ALFWorld-v0", here), ("gagpo/Program-v0", there)):
            agent = language_agent(TransformersEngine(model, tokenizer), make_env(name, kwargs), Sampling(1.0, 8))
            with open_pool(name, kwargs, workers=1) as pool:
                episodes, _ = rollout(agent, pool, group_jobs(tasks, 2, seed=3))
            played.append([(e.task, e.success, e.reward, [turn.response for turn in e.turns]) for e in episodes])
    finally:
        stop(server)
    assert played[0] == played[1] and {reward for _, _, reward, _ in played[1]} == {0.0, 1.0}


def test_a_server_that_is_not_there_is_said_within_seconds():
    begun = time.monotonic()
    with rejects(ServerFailed, "http://127.0.0.1:9"):
        RemoteEnv(NOWHERE)
    outcome = CliRunner().invoke(app, ["eval", "random", "--env", NOWHERE, "--split", "test"])
    assert outcome.exit_code != 0 and "127.0.0.1:9" in str(outcome.exception or outcome.output)
    assert isinstance(outcome.exception, GagpoError) and time.monotonic() - begun < 20
    assert find_spec(NOWHERE).kwargs["url"] == NOWHERE  # naming it asks nothing
