"""Evaluations through a server: killed and continued, limited, never mistaken for another model's."""

import json
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("flask")

from gagpo.agents.api.client import ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.cli.main import main
from gagpo.eval.compare import DifferentTaskSets, compare_results
from gagpo.eval.journal import read_journal
from gagpo.eval.models import measure
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult
from tests.agents.chat_server import serving
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"

LONG = """
import gymnasium
from gagpo.envs import Task, TaskSet
from gagpo.envs.testing import CorridorEnv

class LongEnv(CorridorEnv):
    def tasks(self, split):
        return TaskSet(split, [Task(f"t{n:03d}", split, "corridor", digest=str(n % 12)) for n in range(200)])

gymnasium.register("Long-v0", "long_corridor:LongEnv", disable_env_checker=True, order_enforce=False)
"""

KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from gagpo.agents.api.settings import ApiSettings
from gagpo.eval.models import measure
from gagpo.eval.request import EvaluationRequest

url, folder, rng, kills = sys.argv[1], Path(sys.argv[2]), random.Random(7), 0

def lines():
    return sum(path.read_bytes().count(b'"episode": ') for path in folder.glob("*.jsonl"))

while True:
    child = os.fork()
    if not child:
        report = measure(EvaluationRequest(
            model="openai:m", server=ApiSettings("m", url, timeout=20.0, attempts=30),
            environment="long_corridor:Long-v0", split="test", context={"prompt": "plain"}, workers=0, concurrency=8,
            journals=folder, quiet=True,
        ))
        report.result.save(folder / "result.json")
        (folder / "usage.json").write_text(json.dumps(report.usage))
        os._exit(0)
    until, status = lines() + rng.randrange(5, 15), None
    while kills < 10 and lines() < until and status is None:
        time.sleep(0.003)
        done, ended = os.waitpid(child, os.WNOHANG)
        status = ended if done else None
    if kills < 10 and status is None:
        time.sleep(rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        kills += 1
    if status is None:
        _, status = os.waitpid(child, 0)
    if status == 0:
        break
    if os.WIFEXITED(status):
        sys.exit("an evaluation ended by itself")
print(kills)
"""


@pytest.mark.slow
def test_two_hundred_tasks_killed_ten_times_are_each_played_exactly_once_and_every_request_counted(tmp_path):
    (tmp_path / "long_corridor.py").write_text(LONG)
    root = str(Path(__file__).parents[2])
    with serving(faults=("error", "limit", "garbage"), rate=0.05, delay=0.005) as server:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, server.url, str(tmp_path / "evals")],
            env={"PYTHONPATH": f"{tmp_path}:{root}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=1500,  # a busy machine
        )
        assert done.returncode == 0 and done.stdout.strip() == "10", done.stderr[-2000:]
        requests, answered = len(server.requests), server.answered
        begun = sum(len(request["messages"]) == 1 for request in server.requests)
    result = EvalResult.load(tmp_path / "evals" / "result.json")
    expected = [f"t{n:03d}" for n in range(200)]
    assert [task.task for task in result.tasks] == expected and all(len(task.tries) == 1 for task in result.tasks)
    assert result.successes == 200
    (path,) = (tmp_path / "evals").glob("*.jsonl")
    texts = [json.loads(line.rpartition(" ")[0]) for line in path.read_text().splitlines()]
    assert sorted(request["episode"]["task"] for request in texts if "episode" in request) == expected
    usage = json.loads((tmp_path / "evals" / "usage.json").read_text())
    assert requests <= usage["requests"] <= requests + 10 * 8  # those that a kill kept from being sent are counted
    assert usage["prompt"] <= 10 * answered <= usage["prompt"] + 10 * usage["unanswered"]
    assert begun <= 200 * 1.3 + 10 * 8  # at most what was under way at a kill was begun again, faults aside


def run(server, folder, model="m", **changes):
    api = ApiSettings(model, server.url, **changes.pop("api", {}))
    context = {"prompt": "plain", **changes.pop("context", {})}
    settings = {"split": "test", "context": context, "workers": 0, "journals": folder, "quiet": True, **changes}
    return measure(EvaluationRequest(model=f"openai:{model}", server=api, environment=CORRIDOR, **settings))


UNLIKE = [  # a change of the request, and what a comparison with the usual result says
    ({"model": "n"}, None),
    ({"temperature": 0.5}, "temperature 0.4 against 0.5"),
    ({"max_tokens": 9}, "max_tokens 512 against 9"),
    ({"context": {"history": 2}}, "history 'full' against 2"),
    ({"context": {"admissible": True}}, "admissible False against True"),
    ({"kwargs": {"max_turns": 40}}, "kwargs"),
    ({"tasks": 3}, "split hash"),
    ({"split": "train"}, "split 'test' against 'train'"),
]


def test_the_same_command_plays_nothing_again_and_another_reuses_nothing(tmp_path):
    """What decides an episode is part of the journal's name, and of the result's panel, for a served model too."""
    with serving() as server:
        first = run(server, tmp_path)
        requests = len(server.requests)
        again = run(server, tmp_path)
        assert len(server.requests) == requests and again.result.to_json() == first.result.to_json()
        assert again.usage == first.usage and first.usage["requests"] == requests
        for change, reported in UNLIKE:
            before = len(server.requests)
            results = {"usual": first.result, "other": run(server, tmp_path, **change).result}
            assert len(server.requests) > before, change
            with nullcontext() if reported is None else rejects(DifferentTaskSets, reported):
                compare_results(results)
        before = len(server.requests)
        more = run(server, tmp_path, episodes_per_task=2)  # the first tries are known
        assert len(server.requests) - before == sum(t.tries[1].turns for t in more.result.tasks)


def test_a_limit_keeps_what_is_finished_and_holds_over_interruptions(tmp_path):
    prices = {"input_price": 1e5, "output_price": 0.0}  # a dollar a request
    with serving() as server:
        with rejects(ApiError, "4 episodes"):
            run(server, tmp_path, api={**prices, "limit_cost": 6.0}, concurrency=1)
        requests = len(server.requests)
        assert requests == 6
        with rejects(ApiError, "spent"):
            run(server, tmp_path, api={**prices, "limit_cost": 6.0}, concurrency=1)
        assert len(server.requests) == requests
        report = run(server, tmp_path, api={**prices, "limit_cost": 200.0}, concurrency=1)
        assert report.usage["cost"] == pytest.approx(len(server.requests))
        key, episodes = read_journal(report.journal)
        assert key["model"] == "openai:m" and sum(1 for _ in episodes) == 4


def test_the_file_names_who_played(tmp_path):
    with serving() as server:
        report = run(server, tmp_path, model="qwen/Qwen3 32B")
    assert report.journal.name.startswith("openai-qwen-Qwen3-32B-")
    assert textwrap.shorten(report.result.model, 50) == "openai:qwen/Qwen3 32B"


def command(monkeypatch, *arguments):
    """The command line in this process: its status."""
    monkeypatch.setattr(sys, "argv", ["gagpo", *map(str, arguments)])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return ended.value.code


def test_one_command_evaluates_whatever_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving(style="<action>{}</action>") as server:
        common = ["eval", "openai:m", "--base-url", server.url, "--env", CORRIDOR, "--split", "test", "-q"]
        prices = ["--price-in", 2, "--price-out", 4]
        assert command(monkeypatch, *common, *prices, "--json", "--out", "r.json", "--episodes", "e.jsonl") == 0
        requests = len(server.requests)
        assert server.requests[0]["max_tokens"] == 512 and server.requests[0]["temperature"] == 0.4
        record = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert record["success_rate"] == 1.0 and record["usage"]["requests"] == requests and record["usage"]["cost"] > 0
        assert EvalResult.load(Path("r.json")).successes == 4 and len(Path("e.jsonl").read_text().splitlines()) == 4
        assert command(monkeypatch, *common) == 0 and len(server.requests) == requests  # all is known from evals/
        assert command(monkeypatch, *common, "--seed", 1, "-k", "max_turns=2") == 0 and len(server.requests) > requests


def test_a_stored_result_says_so_and_how_to_ask_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving(style="<action>{}</action>") as server:
        common = ["eval", "openai:m", "--base-url", server.url, "--env", CORRIDOR, "--split", "test", "-q", "--json"]
        assert command(monkeypatch, *common) == 0
        first = capsys.readouterr().out
        assert "NOTE" not in first and "stored_episodes" not in json.loads(first.splitlines()[-1])
        requests = len(server.requests)
        assert command(monkeypatch, *common) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("NOTE: 4 of 4 episodes are stored answers of an earlier evaluation")
        assert json.loads(lines[-1])["stored_episodes"] == 4 and len(server.requests) == requests
        assert command(monkeypatch, *common, "--episodes-per-task", "2") == 0
        assert capsys.readouterr().out.startswith("NOTE: 4 of 8 episodes")
        Path(json.loads(lines[-1])["journal"]).unlink()  # as the note says
        assert command(monkeypatch, *common) == 0 and "NOTE" not in capsys.readouterr().out
        assert len(server.requests) >= 2 * requests


def test_a_served_model_meets_the_panel_of_a_config(tmp_path, monkeypatch, capsys):
    import yaml

    from tests.gagpo.conftest import CORRIDOR as settings

    monkeypatch.chdir(tmp_path)
    context = {"history": 1, "prompt": "tags"}
    Path("run.yaml").write_text(yaml.safe_dump({**settings, "context": context, "model": "nowhere"}))
    with serving(style="<action>{}</action>") as server:
        common = ["eval", "openai:m", "--base-url", server.url, "--like", "run.yaml", "-q", "--out", "r.json"]
        assert command(monkeypatch, *common) == 0
        assert all(len(body["messages"]) == 1 for body in server.requests)  # a window of one turn
        assert {(body["max_tokens"], body["temperature"]) for body in server.requests} == {(3, 1.0)}
    result = EvalResult.load(Path("r.json"))
    assert (result.task_set.split, result.task_set.kwargs["max_turns"]) == ("test", 16)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["openai:m", "--env", CORRIDOR, "--device", "cpu"], "device is for a model in this process"),
        (["random", "--env", CORRIDOR, "--price-in", "1"], "--price-in is for a model behind a server"),
        (["openai:m", "--base-url", "http://127.0.0.1:9/v1"], "name the environment with --env"),
        (["openai:", "--base-url", "http://127.0.0.1:9/v1", "--env", CORRIDOR], "name the model, as in openai:MODEL"),
        (["openai:m", "--base-url", "http://127.0.0.1:9/v1", "--env", CORRIDOR, "--prompt", "x"], "unknown prompt 'x'"),
    ],
)
def test_options_of_the_other_kind_of_model_are_refused(monkeypatch, capsys, arguments, said):
    assert command(monkeypatch, "eval", *arguments, "-q") == 2
    printed = capsys.readouterr()
    assert said in printed.err and len(printed.err.splitlines()) == 1
