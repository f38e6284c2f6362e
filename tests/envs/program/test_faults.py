"""Whatever a program does, its episode ends with a counted outcome, and nothing of it is left."""

import os
import re
import signal
import socket
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.envs.program.programs import PATIENCE, ask, key_of, play, running, wait

SAID = {"messages": [{"role": "user", "content": "one"}]}


def failed(pool, *answers):
    """The error of an episode that is given up."""
    *_, event = play(pool, *(answers or ("ok",)))
    assert event.kind == "failed" and pool.counters.failures == 1 and pool.counters.restarts == 1
    return event.error


@pytest.mark.parametrize(
    ("source", "counter", "said"),
    [
        ("chat(user('one'))\nraise ValueError('broken tool')", "crashes", "exit status 1: .*ValueError: broken tool"),
        ("chat(user('one'))\nos.kill(os.getpid(), 9)", "crashes", "signal 9"),
        ("chat(user('one'))\nos.kill(os.getppid(), 9)\ntime.sleep(1000)", "crashes", "signal SIGKILL"),
        ("print('{\"reward\": 1}')", "errors", "ended without a request"),
        ("chat(user('one'))", "errors", "ended without a reward: print"),
        ("chat(user('one'))\nprint('{\"reward\": NaN}')", "errors", "reward must be a number"),
        ("chat(user('one'))\nprint('{\"reward\": true}')", "errors", "reward must be a number"),
        ("chat(user('one'))\nprint('{broken')", "errors", "no reward"),
        ("chat(user('one'))\nx = bytearray(1 << 30)", "crashes", "MemoryError"),
    ],
)
def test_a_program_that_fails_starts_over_and_is_then_given_up(tmp_path, source, counter, said):
    with running(tmp_path, source, memory=400) as pool:
        assert re.search(said, failed(pool))
        assert getattr(pool.counters, counter) == 2


def test_an_unknown_task_is_given_up(tmp_path):
    with running(tmp_path, "") as pool:
        assert "has no task 'b'" in play(pool, "ok", task="b")[-1].error


@pytest.mark.parametrize("source", ["time.sleep(1000)", "chat(user('one'))\ntime.sleep(1000)"])
def test_a_program_that_hangs_is_killed_at_its_deadline(tmp_path, source):
    with running(tmp_path, source, deadline=2.0) as pool:
        assert "made no request for 2 s; raise rollout." in failed(pool)
        assert pool.counters.hangs == 2


def test_a_program_that_fails_once_is_played_again(tmp_path):
    source = f"""
chat(user("one"))
if not os.path.exists({str(tmp_path / "second")!r}):
    open({str(tmp_path / "second")!r}, "w")
    sys.exit(3)
print('{{"reward": 1}}')
"""
    with running(tmp_path, source) as pool:
        events = play(pool, "ok")
        assert [event.kind for event in events] == ["reset", "restarted", "step"] and events[-1].reward == 1.0


@pytest.mark.parametrize("end", ["print('{\"reward\": 1}')", "chat(user('two'))", "time.sleep(1000)"])
def test_children_of_a_program_end_with_it(tmp_path, end):
    """Some left its process group, and have no parent any more."""
    source = f"""
import subprocess
for options in ({{}}, {{"start_new_session": True}}):
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], **options)
time.sleep(0.5)
listed = subprocess.run(["ps", "-e", "-o", "pid=,args="], capture_output=True, text=True).stdout.splitlines()
open({str(tmp_path / "children")!r}, "w").write(" ".join(line.split()[0] for line in listed if "sleep 1000" in line))
chat(user("one"))
{end}
"""
    with running(tmp_path, source, timeout=5.0) as pool:
        pool.reset(0, "a", 1)
        wait(pool)
        children = [int(item) for item in (tmp_path / "children").read_text().split()]
        assert len(children) >= 4
        pool.step(0, "ok")
        wait(pool)
        pool.release(0)
        pool.flush()
        end_of = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{item}/cmdline").exists() for item in children):
            assert time.monotonic() < end_of
            time.sleep(0.05)


def test_a_key_is_of_one_episode_while_it_runs(tmp_path):
    with running(tmp_path, "chat(user('one'))\nprint('{\"reward\": 1}')\n", rows=("a", "b")) as pool:
        pool.reset(0, "a", 1)
        wait(pool)
        key = key_of(pool)
        assert ask(pool, "/v1/models", key=key, method="GET")[1]["data"][0]["id"] == "gagpo"
        for wrong in ("", "wrong"):
            status, body = ask(pool, body=SAID, key=wrong)
            assert (status, body["error"]["type"]) == (401, "authentication_error")
        pool.step(0, "ok")
        assert wait(pool).terminated
        assert ask(pool, body=SAID, key=key)[0] == 409
        assert ask(pool, "/reward", {"reward": 1}, key)[0] == 409
        pool.reset(0, "b", 1)
        wait(pool)
        assert ask(pool, body=SAID, key=key)[0] == 409 and key_of(pool) != key


def test_broken_requests_are_refused_with_a_reason(tmp_path):
    with running(tmp_path, "chat(user('one'))\nprint('{\"reward\": 1}')\n") as pool:
        pool.reset(0, "a", 1)
        wait(pool)
        key = key_of(pool)
        for raw in (b"{", b"[]", b"[" * 100_000, b'{"messages": "\\ud800"}', b"\xff"):
            status, body = ask(pool, raw=raw, key=key)
            assert status == 400 and "JSON" in body["error"]["message"]
        for change, messages in (
            ({"messages": []}, "messages: must hold at least one message"),
            ({"messages": [{"role": "judge", "content": "x"}]}, "messages.0.role"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
            ({"messages": "text"}, "messages must be a list"),
            ({"top_p": 0.9}, "top_p=0.9 is not supported"),
            ({"top_k": 5}, "top_k"),
            ({"frequency_penalty": 0.5}, "frequency_penalty"),
            ({"logit_bias": {"5": 1}}, "logit_bias"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"n": -1}, "n must be"),
            ({"stop": 5}, "stop must be"),
            ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ):
            status, body = ask(pool, body={**SAID, **change}, key=key)
            assert status == 400 and messages in body["error"]["message"], change
        with closing(
            socket.create_connection((urlsplit(pool._server.address).hostname, urlsplit(pool._server.address).port))
        ) as client:
            client.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50000000\r\n\r\n"
                + b"x" * ((16 << 20) + 1)
            )
            assert client.recv(100).startswith(b"HTTP/1.1 413")
        pool.step(0, "ok")
        assert wait(pool).terminated


def test_a_client_that_hangs_up_takes_its_request_along(tmp_path):
    source = """
import http.client
def cut():
    server = http.client.HTTPConnection(os.environ["ANTHROPIC_BASE_URL"][7:])
    body = json.dumps({"messages": [user("never read")], "stream": True})
    server.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    time.sleep(0.5)
    server.close()
cut()
time.sleep(0.5)
print(json.dumps({"reward": float(chat(user("two")) == "read")}))
"""
    with running(tmp_path, source) as pool:
        pool.reset(0, "a", 1)
        assert wait(pool).observation == "never read"
        time.sleep(1.0)
        pool.step(0, "lost")
        second = wait(pool)
        pool.step(0, "read")
        end = wait(pool)
        assert second.observation == "two" and end.reward == 1.0 and end.info["unread"] == 1


def test_a_thousand_idle_connections_disturb_nobody(tmp_path):
    with running(tmp_path, "chat(user('one'))\nprint('{\"reward\": 1}')\n") as pool:
        address = urlsplit(pool._server.address)
        idle = [socket.create_connection((address.hostname, address.port)) for _ in range(1000)]
        for item in idle[::2]:
            item.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n")
        assert play(pool, "ok")[-1].reward == 1.0
        for item in idle:
            item.close()


def test_the_process_that_starts_programs_may_be_killed(tmp_path):
    source = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nchat(user('one'))\nchat(user('two'))\n"
    with running(tmp_path, source) as pool:
        pool.reset(0, "a", 1)
        wait(pool)
        program = Path("/proc") / (tmp_path / "pid").read_text()
        os.kill(pool._runs._server._child.process, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while program.exists() or pool._runs._connections:
            assert time.monotonic() < end
            time.sleep(0.01)
        pool.step(0, "ok")
        event = wait(pool)
        assert event.kind == "restarted" and pool.counters.crashes == 1
        pool.step(0, "ok")
        assert wait(pool).observation == "two"


def test_a_closed_pool_leaves_no_process_and_no_port(tmp_path):
    source = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nchat(user('one'))\n"
    with running(tmp_path, source) as pool:
        pool.reset(0, "a", 1)
        wait(pool)
        address = urlsplit(pool._server.address)
    pid = (tmp_path / "pid").read_text()
    assert not Path(f"/proc/{pid}").exists() and not pool._thread.is_alive()
    with closing(socket.socket()) as probe:
        assert probe.connect_ex((address.hostname, address.port)) != 0
