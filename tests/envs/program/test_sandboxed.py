"""Programs in a sandbox reach the gateway and nothing else of this machine; real processes, and bubblewrap."""

import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from gagpo.base.errors import InvalidArgument
from gagpo.base.sandbox import SandboxUnavailable, require_sandbox
from tests.envs.pool.faulty import until
from tests.envs.program.programs import TALK, play, running
from tests.rejections import rejects

try:
    require_sandbox()
    UNAVAILABLE = ""
except SandboxUnavailable as error:
    UNAVAILABLE = str(error)
needs_sandbox = pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE or "not needed")

ATTACKS = """
import ctypes, resource, socket

def attempt(name, action):
    try:
        action()
    except OSError:
        return
    succeeded.append(name)

def mount():
    if ctypes.CDLL(None).mount(b"x", b"/mnt", b"tmpfs", 0, None) != 0:
        raise OSError

def other_episodes():
    if os.listdir(os.path.dirname(os.environ["TMPDIR"])) == [os.path.basename(os.environ["TMPDIR"])]:
        raise OSError

succeeded = []
attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("another port", lambda: socket.create_connection(("127.0.0.1", {port}), 2))
attempt("socket in a folder", lambda: socket.socket(socket.AF_UNIX).connect({path!r}))
attempt("limits of the trainer", lambda: resource.prlimit({trainer}, resource.RLIMIT_NOFILE, (64, 64)))
attempt("signal to the trainer", lambda: os.kill({trainer}, 0))
attempt("processors of the trainer", lambda: os.sched_setaffinity({trainer}, [0]))
attempt("files of this machine", lambda: open({folder!r} + "/written", "w"))
attempt("settings of the machine", lambda: open("/proc/sys/vm/swappiness", "r+"))
attempt("folders of other episodes", other_episodes)
attempt("device file", lambda: os.mknod("/tmp/device", 0o60660, os.makedev(254, 0)))
attempt("mount", mount)
open(os.environ["TMPDIR"] + "/file", "w").close()
open("/tmp/file", "w").close()
assert chat(user(" ".join(succeeded) or "nothing")) == "ok"
assert chat(user("x" * (2 << 20))) == "ok"  # more than the buffers of a connection
print('{{"reward": 1}}')
"""


@needs_sandbox
def test_a_sandboxed_program_reaches_the_gateway_and_nothing_else(tmp_path):
    path = f"/tmp/gagpo-test-{os.getpid()}"
    try:
        with socket.create_server(("127.0.0.1", 0)) as other, socket.socket(socket.AF_UNIX) as in_folder:
            in_folder.bind(path)
            in_folder.listen()
            source = ATTACKS.format(port=other.getsockname()[1], path=path, trainer=os.getpid(), folder=str(tmp_path))
            with running(tmp_path, source, sandbox="bubblewrap") as pool:
                events = play(pool, "ok")
    finally:
        Path(path).unlink()
    assert events[-1].reward == 1.0, events[-1].error
    assert events[0].observation == "nothing"


@needs_sandbox
def test_memory_files_of_a_sandbox_count_also_once_they_are_closed(tmp_path):
    source = """
chat(user("one"))
chunk = bytes(1 << 20)
number = os.memfd_create("x") if TASK["id"] == "memfd" else os.open(TASK["id"] + "/x", os.O_CREAT | os.O_WRONLY)
for _ in range(110):
    os.write(number, chunk)
if TASK["id"] != "memfd":
    os.close(number)
filled = bytearray(60 << 20)
time.sleep(30)
print('{"reward": 1}')
"""
    rows = ("memfd", "/dev/shm", "/tmp")
    with running(tmp_path, source, rows, memory=120, sandbox="bubblewrap") as pool:
        pool._max_restarts = 0
        ends = {name: play(pool, "ok", task=name)[-1] for name in rows}
    for name, end in ends.items():
        assert "took more memory than its limit" in end.error, name


@needs_sandbox
def test_a_reward_function_judges_a_sandboxed_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sandbox_rewards.py").write_text("def reward(task, transcript):\n    return len(transcript)\n")
    source = "chat(user('one'))\nchat(user('two'))\nos.system('setsid sleep 98711 &')\n"
    with running(tmp_path, source, sandbox="bubblewrap", reward="sandbox_rewards:reward") as pool:
        end = play(pool, "ok")[-1]
    assert end.reward == 2.0, end.error
    until(lambda: not _runs("sleep\0" + "98711\0"), "the end of what the program left behind")


@needs_sandbox
def test_a_program_directly_in_a_hidden_folder_is_visible(tmp_path, monkeypatch):
    monkeypatch.chdir("/tmp")
    path = Path(f"/tmp/gagpo-test-{os.getpid()}.py")
    path.write_text(TALK + "chat(user(' '.join(os.listdir('/tmp'))))\nprint('{\"reward\": 1}')\n")
    try:
        with running(tmp_path, "", command=f"python {path.name}", sandbox="bubblewrap") as pool:
            first, end = play(pool, "ok")
    finally:
        path.unlink()
    assert end.reward == 1.0 and path.name in first.observation.split()
    assert not any(name.startswith("pytest-of-") for name in first.observation.split())


@needs_sandbox
def test_the_errors_of_a_sandboxed_program_are_reported(tmp_path):
    with running(tmp_path, "raise ValueError('of the program')", sandbox="bubblewrap") as pool:
        pool._max_restarts = 0
        assert "of the program" in play(pool, "ok")[-1].error


def test_a_program_never_runs_without_the_sandbox_that_was_asked_for(tmp_path, monkeypatch):
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: no namespaces' >&2\nexit 1\n")
    false.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with rejects(SandboxUnavailable, "bwrap: no namespaces"):
        running(tmp_path, "", sandbox="bubblewrap").__enter__()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with rejects(SandboxUnavailable, advice="apt-get install bubblewrap"):
        running(tmp_path, "", sandbox="bubblewrap").__enter__()


def test_a_sandbox_needs_a_command(tmp_path):
    with rejects(InvalidArgument, key="sandbox", advice="command='python my_agent.py'"):
        running(tmp_path, "", command="", agent="math:sqrt", sandbox="bubblewrap").__enter__()
    with rejects(InvalidArgument, "docker", key="sandbox"):
        running(tmp_path, "", sandbox="docker").__enter__()


def _runs(line):
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text())
        except OSError:
            continue
    return line in lines
