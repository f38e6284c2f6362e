"""Ranks that stop, die, restart or run on separate hosts, as real processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gagpo.base.rank import REQUIRED
from gagpo.distributed.environment import LOST
from gagpo.distributed.errors import RankLost
from gagpo.distributed.ranks import joined
from tests.gagpo.distributed.conftest import start_ranks
from tests.rejections import rejects

WORKER = Path(__file__).with_name("meeting_worker.py")
TWO_HOSTS = WORKER.with_name("two_hosts.py")
SECONDS = 300


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks that meet until :func:`end`; whatever is left of them is killed."""
    started = []

    def start(deadline, count=2):
        started.extend(start_ranks([WORKER, tmp_path, deadline], count))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_meetings(folder, count=2):
    """Until every rank has met the others again."""
    for path in (folder / f"meetings {rank}" for rank in range(count)):
        path.unlink(missing_ok=True)
    until = time.monotonic() + SECONDS
    while not all((folder / f"meetings {rank}").exists() for rank in range(count)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_stopped_rank_is_noticed_by_the_others_though_it_holds_the_store(ranks, tmp_path):
    stopped, *remaining = ranks(5, count=3)
    wait_for_meetings(tmp_path, 3)
    os.kill(stopped.pid, signal.SIGSTOP)
    messages = "".join(process.communicate(timeout=SECONDS)[0] for process in remaining)
    assert all(process.returncode in (1, LOST) for process in remaining), messages
    assert "rank 0 of 3 has given no sign of life for 5 s" in messages


@pytest.mark.slow
def test_ranks_that_were_all_stopped_go_on(ranks, tmp_path):
    processes = ranks(8)
    wait_for_meetings(tmp_path)
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(12)  # longer than the deadline
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
    wait_for_meetings(tmp_path)
    (tmp_path / "end").touch()
    for rank, process in enumerate(processes):
        messages, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0 and f"{rank} ended well" in messages, messages


def test_a_store_that_never_answers_is_no_place_to_meet(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        location = ("1", "2", "1", "127.0.0.1", str(silent.getsockname()[1]))
        for name, value in zip(REQUIRED, location, strict=True):
            monkeypatch.setenv(name, value)
        with rejects(RankLost, "2 ranks"), joined(meeting=2):
            pass


def on_two_hosts(folder, deadline):
    """What becomes of two ranks in network namespaces of their own; skipped where there can be none."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    alone = ["unshare", "-rnm"]
    allowed = subprocess.run([*alone, "ip", "link", "add", "near0", "type", "veth"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"network namespaces are not allowed here: {allowed.stderr.strip()}")
    command = [*alone, sys.executable, TWO_HOSTS, folder, deadline]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_link_that_is_cut_ends_both_hosts(tmp_path):
    for rank, (status, messages) in enumerate(on_two_hosts(tmp_path, 8)):
        assert status in (1, LOST), messages
        assert f"rank {1 - rank} of 2 has given no sign of life for 8 s" in messages, messages
