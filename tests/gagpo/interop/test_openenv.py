"""The OpenEnv server, as a process of its own with real clients: what is sent, and what cannot bring it down."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("openenv")
pytest.importorskip("gagpo.interop.openenv")

from openenv import GenericEnvClient
from openenv.cli._validation import validate_running_environment
from openenv.core.env_server.types import Action
from websockets.sync.client import connect

from benchmarks.serve import crowd, start, stop
from gagpo.envs.testing import CorridorEnv
from gagpo.interop.openenv import TextAction

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"


@pytest.fixture(scope="module")
def url():
    server, address = start(CORRIDOR, '{"port": 0, "workers": 2, "max_sessions": 50}')
    yield address
    assert stop(server) in (0, 130, -signal.SIGINT)


def ask(socket, **message):
    socket.send(json.dumps(message))
    return json.loads(socket.recv(timeout=20))


def dial(url):
    return connect(url.replace("http", "ws") + "/ws", max_size=None)


def post(url, path, body):
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_text_reaches_the_prompt_and_the_ends_are_told_apart(url):
    with GenericEnvClient(base_url=url).sync() as client:
        result = client.reset(seed=3, split="train", index=2)
        assert set(result.observation) == {"text"}
        assert result.metadata == {"truncated": False, "success": False, "valid": True, "split": "train", "index": 2}
        result = client.step({"action": "sideways"})
        assert result.metadata == {"truncated": False, "success": False, "valid": False}
        while not result.done:
            result = client.step({"action": "left"})
        assert (result.reward, result.metadata["success"], result.metadata["truncated"]) == (1.0, True, False)
        assert set(client.state()) == {"episode_id", "step_count"}
        client.reset(seed=3, split="test", index=0)
        for _ in range(50):
            result = client.step({"action": "right"})
        assert result.done and result.metadata["truncated"] and not result.metadata["success"]


def test_a_trainer_gets_hashed_state_keys_and_the_tasks_id(url):
    with GenericEnvClient(base_url=url).sync() as client:
        result = client.reset(seed=3, split="test", index=2, training=True)
        assert set(result.observation) == {"text"} and result.metadata["task"] == "door-10"
        first = result.metadata["state"]
        assert len(first) == 32 and first != "10"
        assert client.step({"action": "sideways"}).metadata["state"] == first
        assert client.step({"action": "left"}).metadata["state"] != first
        assert "state" not in client.reset(seed=3, split="test", index=2).metadata, "only for the episode that asks"
        assert "state" not in client.step({"action": "left"}).metadata
    with dial(url) as socket:
        assert "training must be" in ask(socket, type="reset", data={"training": 1})["data"]["message"]


def test_the_task_api_lists_the_tasks_of_each_split(url):
    assert json.loads(urllib.request.urlopen(url + "/list_environments", timeout=20).read()) == ["corridor"]
    splits = json.loads(urllib.request.urlopen(url + "/corridor/splits", timeout=20).read())
    assert [split["name"] for split in splits] == ["train", "test"]
    status, answer = post(url, "/corridor/tasks", b'{"split": "test"}')
    tasks = CorridorEnv().tasks("test")
    assert status == 200 and [row["id"] for row in answer["tasks"]] == tasks.ids
    assert answer["tasks"][0] == {"id": "door-08", "index": 0, "type": "corridor", "digest": "8", "level": 0}
    assert post(url, "/corridor/num_tasks", b'{"split": "train"}') == (200, {"num_tasks": 8})
    assert post(url, "/corridor/task", b'{"split": "test", "index": 9}')[0] == 400
    assert post(url, "/corridor/tasks", b'{"split": "nowhere"}')[0] == 404


def test_the_same_texts_as_in_process(url):
    env = CorridorEnv()
    observation, _ = env.reset(seed=11, options={"task": env.tasks("test").ids[1]})
    with GenericEnvClient(base_url=url).sync() as client:
        assert client.reset(seed=11, split="test", index=1).observation["text"] == observation
        for action in ("left", "nonsense", "right", "left"):
            observation, reward, *_ = env.step(action)
            result = client.step({"action": action})
            assert (result.observation["text"], result.reward) == (observation, reward)


@pytest.mark.parametrize("sent, kept", [(15, "15"), ("15", "15"), (True, "true"), ("\ud800", "?"), ([1], "[1]")])
def test_an_answer_stays_text(sent, kept):
    action = TextAction.model_validate({"action": sent})
    assert isinstance(action, Action) and action.action == kept


def test_what_makes_no_sense_is_answered(url):
    with dial(url) as socket:

        def message(**more):
            return ask(socket, **more)["data"].get("message", "")

        assert "before stepping" in message(type="step", data={"action": "left"})
        assert "no split" in message(type="reset", data={"split": "nowhere"})
        assert "no index" in message(type="reset", data={"index": 10**30})
        assert "no index" in message(type="reset", data={"index": "0"})
        assert "seed" in message(type="reset", data={"seed": -1})
        assert "unknown reset argument" in message(type="reset", data={"expert": True})
        assert "Unknown message type" in message(type="dance")
        assert "Invalid message" in message(type="step", data={"move": "left"})
        assert "Invalid message" in message(type="step", data="left")
        socket.send("{not json")
        assert "Invalid JSON" in json.loads(socket.recv(timeout=20))["data"]["message"]
        socket.send('{"type": "step", "data": {"action": "\\ud800"}}')
        assert "before stepping" in json.loads(socket.recv(timeout=20))["data"]["message"]
        assert ask(socket, type="reset", data={"seed": 1})["data"]["observation"]["text"].startswith("You stand")


@pytest.mark.parametrize("text", ["[]", "null", "[" * 100_000, "{" * 5, '{"type": "step", "data": {"\\ud800": 1}}'])
def test_malformed_messages_do_no_harm(url, text):
    with dial(url) as socket:
        socket.send(text)
        assert json.loads(socket.recv(timeout=20))["type"] == "error"
    with dial(url) as socket:
        assert ask(socket, type="reset", data={"seed": 1})["type"] == "observation"


def test_oversized_messages_are_refused_and_large_ones_played(url):
    from websockets.exceptions import ConnectionClosed

    with dial(url) as socket:
        socket.send(json.dumps({"type": "step", "data": {"action": "x" * 3_000_000}}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
        assert closed.value.rcvd.code == 1009
    with dial(url) as socket:
        ask(socket, type="reset", data={"seed": 1})
        answer = ask(socket, type="step", data={"action": "x" * 100_000})
        assert answer["data"]["metadata"]["valid"] is False
    assert post(url, "/reset", b'{"seed": "' + b"1" * 3_000_000 + b'"}')[0] == 413
    assert post(url, "/step", b'{"action": {"action": "left"}}')[0] == 409
    assert post(url, "/reset", b"nonsense")[0] == 422
    assert post(url, "/reset", b'{"seed": 5}')[0] == 200


def test_killed_clients_leave_their_places_to_others(url):
    """As many clients as there are places are killed in the middle of an episode; as many others come in."""
    code = (
        "import json, sys, time\nfrom websockets.sync.client import connect\n"
        "sockets = [connect(sys.argv[1] + '/ws') for _ in range(50)]\n"
        "for s in sockets:\n    s.send(json.dumps({'type': 'reset', 'data': {'seed': 1}})); s.recv()\n"
        "for s in sockets: s.send(json.dumps({'type': 'step', 'data': {'action': 'left'}}))\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code, url.replace("http", "ws")], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout.readline() == "ready\n"
    with dial(url) as socket:
        assert json.loads(socket.recv(timeout=20))["data"]["code"] == "CAPACITY_REACHED"
    client.kill()
    client.wait()
    deadline = time.monotonic() + 30
    sockets = []
    while len(sockets) < 50 and time.monotonic() < deadline:
        socket = dial(url)
        if ask(socket, type="reset", data={"seed": 1})["type"] == "observation":
            sockets.append(socket)
        else:
            socket.close()
    assert len(sockets) == 50
    for socket in sockets:
        socket.close()


def test_fifty_sessions_make_twenty_thousand_steps(url):
    deadline = time.monotonic() + 30
    while True:  # the sessions of earlier tests may still be closing
        try:
            report = asyncio.run(crowd(url, 50, 20_000))
            break
        except (RuntimeError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert report["steps"] == 20_000 and report["episodes"] > 0


def test_a_running_server_is_valid(url):
    report = validate_running_environment(url)
    assert report["passed"], report


def test_a_env_that_breaks_or_hangs_costs_one_episode():
    server, url = start(FAULTY, '{"port": 0, "workers": 1, "step_timeout": 1.0}')
    try:
        with dial(url) as socket:
            for fault, reported in (("raise", "broken on purpose"), ("crash", "died"), ("sleep", "more than 1 s")):
                ask(socket, type="reset", data={"seed": 1, "task": "quiet"})
                answer = ask(socket, type="step", data={"action": fault})
                assert reported in answer["data"]["message"]
                assert "before stepping" in ask(socket, type="step", data={"action": "go"})["data"]["message"]
            assert ask(socket, type="reset", data={"seed": 1, "task": "quiet"})["type"] == "observation"
    finally:
        stop(server)


def test_sessions_end_at_their_deadline():
    server, url = start(CORRIDOR, '{"port": 0, "workers": 0, "session_timeout": 1.0}')
    try:
        with dial(url) as socket:
            ask(socket, type="reset", data={"seed": 1})
            time.sleep(1.2)
            assert "the session is over" in ask(socket, type="step", data={"action": "left"})["data"]["message"]
    finally:
        stop(server)


def test_no_process_outlives_the_server():
    import psutil

    server, _url = start(CORRIDOR, '{"port": 0, "workers": 2}')
    children = psutil.Process(server.pid).children(recursive=True)
    assert children
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_experts_are_not_served():
    from gagpo.interop.openenv import OpenEnvEnvironment

    with pytest.raises(ValueError, match="a server does not offer an expert"):
        OpenEnvEnvironment(CORRIDOR, {"expert": True})


def test_a_server_is_held_to_the_promises_of_an_environment(url):
    from gagpo.envs.check.check import check

    findings = {finding.name: finding for finding in check(url, episodes=3)}
    assert not [finding for finding in findings.values() if not finding.ok]
    assert findings["garbage actions"].judged
