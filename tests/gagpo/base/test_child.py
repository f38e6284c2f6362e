"""A child process: its owner never waits past a deadline, and nothing is left running."""

import contextlib
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from gagpo.base.child import LONGEST_FRAME, Child, ChildEnded, ChildFailed, ChildLate, Shared
from tests.gagpo.base import child_targets
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
TARGETS = child_targets.__name__


@pytest.fixture
def child():
    result = Child(f"{TARGETS}:serve", "a", "b", name="the test's child")
    yield result
    result.close()
    assert result.process is None


def gone(process, seconds=30.0):
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(process).wait(seconds)
    return not psutil.pid_exists(process)


def test_it_starts_when_it_is_asked_and_again_after_it_ended(child):
    assert child.process is None and not child.running
    assert child.ask(("arguments", None), 30) == ["a", "b"]
    first = child.process
    assert child.running and os.getpgid(first) == first
    child.close()
    child.close()
    assert not psutil.pid_exists(first)
    assert child.ask(("echo", {"text": ["é", 1.5, None, b"\0"]}), 30) == {"text": ["é", 1.5, None, b"\0"]}
    assert child.process != first


@pytest.mark.parametrize(("ask", "status"), [(("exit", 3), 3), (("exit", 0), 0)])
def test_its_end_is_told_with_its_status(child, ask, status):
    with rejects(ChildEnded, f"({status})") as caught:
        child.ask(ask, 30)
    assert caught.value.status == status and child.ask(("echo", 1), 30) == 1
    os.kill(child.process, signal.SIGKILL)
    with pytest.raises(ChildEnded) as caught:
        child.ask(("echo", 1), 30)
    assert caught.value.status == -signal.SIGKILL


def test_a_hang_ends_at_its_deadline_with_the_process(child):
    child.ask(("echo", 1), 30)
    hung = child.process
    os.kill(hung, signal.SIGSTOP)
    begun = time.monotonic()
    with rejects(ChildLate, "0 s"):
        child.ask(("echo", 2), 0.3)
    assert time.monotonic() - begun < 5 and not psutil.pid_exists(hung)
    assert child.ask(("echo", 3), 30) == 3


def test_a_message_that_is_not_read_ends_at_the_deadline():
    child = Child(f"{TARGETS}:never_reading")
    with pytest.raises(ChildLate):
        child.ask(b"x" * (8 << 20), 0.3)
    assert child.process is None


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", LONGEST_FRAME + 1),
        struct.pack("<I", 3) + b"???",
        struct.pack("<I", 5) + b"[\xff\xff\xff\xff",
        struct.pack("<I", 0),
    ],
)
def test_bytes_that_are_not_a_message_end_it(child, data):
    child.ask(("echo", 1), 30)
    with pytest.raises(ChildEnded):
        child.ask(("write", data), 30)
    assert child.ask(("echo", 2), 30) == 2


@pytest.mark.parametrize(("target", "name"), [("broken", "(3)"), ("mute", "0.5 s")])
def test_one_that_does_not_start_says_why(target, name):
    child = Child(f"{TARGETS}:{target}", name="a worker", start_timeout=0.5 if target == "mute" else 30)
    with rejects(ChildFailed, name, where="a worker"):
        child.ask("anything", 30)
    assert child.process is None


def test_an_interpreter_that_is_missing_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with rejects(ChildFailed, "No such file", where="a child process"):
        Child(f"{TARGETS}:serve").ask(("echo", 1), 1)


def test_memory_is_bounded():
    with contextlib.closing(Child(f"{TARGETS}:serve", memory=256 << 20)) as child:
        assert child.ask(("allocate", 512 << 20), 30) == "no memory" and child.ask(("echo", 1), 30) == 1


def test_a_bare_package_is_not_initialised():
    with contextlib.closing(Child(f"{TARGETS}:serve", bare=("gagpo", "gagpo.envs"))) as child:
        modules = child.ask(("modules", None), 30)
    assert "gagpo.base.child" in modules and not {"numpy", "gymnasium"} & set(modules)


def test_an_interrupt_leaves_no_answer_for_the_next_message(child, monkeypatch):
    child.ask(("echo", 1), 30)

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(child.pipe, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.ask(("echo", "the first"), 30)
    assert child.ask(("echo", "the second"), 30) == "the second"


def test_threads_share_it(child):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: child.ask(("echo", n), 30), range(100))) == list(range(100))


def test_what_it_started_ends_with_it_and_so_does_a_forgotten_one(child):
    assert child.ask(("start", None), 30) == child.process
    (grandchild,) = psutil.Process(child.process).children()
    child.close()
    assert gone(grandchild.pid)
    forgotten = Child(f"{TARGETS}:serve")
    forgotten.ask(("echo", 1), 30)
    process = forgotten.process
    del forgotten
    assert gone(process)


def test_a_fork_has_its_own(child):
    child.ask(("echo", 1), 30)
    parents = child.process
    actual, expected = socket.socketpair()
    copy = os.fork()
    if copy == 0:
        try:
            good = child.process is None and child.ask(("echo", 2), 30) == 2 and child.process != parents
            expected.sendall(marshal.dumps(good))
            child.close()
        finally:
            os._exit(0)
    actual.settimeout(60)
    assert marshal.loads(actual.recv(10)) is True and os.waitpid(copy, 0)[1] == 0
    assert child.ask(("echo", 3), 30) == 3 and child.process == parents


OWNER = """
import sys, time
from gagpo.base.child import Child
child = Child({target!r})
child.ask(("echo", 1), 60)
print(child.process, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["", "import os; os._exit(0)", "sys.stdin.read()"], ids=["ends", "quits", "is killed"])
def test_it_ends_with_its_owner(then):
    code = OWNER.format(target=f"{TARGETS}:serve", then=then)
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        process = int(owner.stdout.readline())
        if "stdin" in then:
            owner.kill()
        owner.wait(60)
    assert gone(process)


def test_users_share_one_and_the_last_ends_it(child):
    class User:
        pass

    item, other, shared = User(), User(), Shared(child)
    assert shared.take(item) is shared.take(other) is child and child.ask(("echo", 1), 30) == 1
    shared.release(item)
    shared.release(item)
    assert child.running
    shared.release(other)
    assert not child.running
