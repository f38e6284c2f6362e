"""An MCP server as a child process: answers, deadlines, limits, and clean-up."""

import os
import signal
import threading
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from contextlib import closing

import pytest

pytest.importorskip("mcp", reason="the optional package mcp is not installed")

from gagpo.envs.base import Outcome
from gagpo.envs.mcp.answers import MAX_ANSWER
from gagpo.envs.mcp.server import ServerError, ToolServer, listed_tools
from tests.rejections import rejects

COMMAND = ("python", os.path.join(os.path.dirname(__file__), "arithmetic_server.py"))
LIAR = ("python", os.path.join(os.path.dirname(__file__), "lying_server.py"))


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def server():
    with closing(ToolServer(COMMAND, 60)) as result:
        yield result


@pytest.fixture
def fragile():
    """A server for a test that ends it."""
    with closing(ToolServer(COMMAND, 60)) as result:
        yield result


def misbehave(server, way, seconds=30):
    return server.call("misbehave", {"way": way}, seconds)


def test_tools_are_listed_and_called(server):
    assert [tool.name for tool in server.tools] == ["add", "remember", "misbehave"]
    assert server.tools[0].parameters["required"] == ["a", "b"]
    assert server.call("add", {"a": 2, "b": 3}, 30) == Outcome("5")
    assert server.call("remember", {"word": "a"}, 30).observation == "a"
    assert server.call("remember", {"word": "b"}, 30).observation == "a b"
    refused = [server.call("add", {"a": "x"}, 30), server.call("nothing", {}, 30), misbehave(server, "raise")]
    assert [item.valid for item in refused] == [False, False, False] and "valid integer" in refused[0].observation


def test_a_long_answer_is_shown_in_part(server):
    huge = misbehave(server, "huge").observation
    assert len(huge) < MAX_ANSWER + 100 and huge.endswith("[980,000 more characters]")


@pytest.mark.parametrize("lie", ["noise", "pages"])
def test_what_is_only_odd_is_read(lie):
    with closing(ToolServer((*LIAR, lie), 60)) as server:
        assert server.call("echo", {}, 30) == Outcome("done")


@pytest.mark.parametrize(
    ("lie", "outcome"),
    [
        ("structured", Outcome('{"value": 42}')),
        ("structured only", Outcome('{"value": 42}')),
        ("structured and null", Outcome('{"value": 42}')),
        ("structured beside an image", Outcome('[image image/png]\n{"value": "é"}')),
        ("structured and blank", Outcome(' \n{"value": 42}')),
        ("structured and text", Outcome("42")),
        ("failed", Outcome('{"value": 42}', valid=False)),
        ("resource", Outcome("the notes")),
        ("blob", Outcome("[resource file:///notes.txt text/plain]")),
        ("link", Outcome("[resource link notes file:///notes.txt text/plain]")),
        ("schema of answers", Outcome("not as declared")),
        ("no structure", Outcome("not as declared")),
        ("surrogate", Outcome("a\ufffdb 🙂")),
        ("latin-1", Outcome("caf\ufffd")),
    ],
)
def test_every_kind_of_answer_reaches_the_model_as_text(lie, outcome):
    with closing(ToolServer((*LIAR, lie), 60)) as server:
        assert server.call("echo", {}, 30) == outcome


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        ("rejected", "x must not be bad"),
        ("rejected with data", 'Invalid params: {"x": "must not be bad"}'),
        ("same code as a lost connection", "the till is closed"),
        ("no words", "error -32603"),
    ],
)
def test_a_rejected_call_is_an_invalid_turn_and_the_server_goes_on(lie, text):
    with closing(ToolServer((*LIAR, lie), 60)) as server:
        assert server.call("echo", {}, 30) == Outcome(text, valid=False)
        assert server.call("echo", {}, 30) == Outcome("call 2")


@pytest.mark.parametrize(
    ("lie", "name"), [("key", "starting set MY_API_KEY"), ("key on standard output", ": set MY_API_KEY")]
)
def test_the_last_words_of_a_server_that_does_not_start_are_in_the_error(lie, name):
    with rejects(ServerError, "status 1", name):
        ToolServer((*LIAR, lie), 60)


def test_the_last_words_of_a_server_are_in_the_error():
    with closing(ToolServer((*LIAR, "last words"), 60)) as server, pytest.raises(ServerError) as caught:
        server.call("echo", {}, 30)
    assert str(caught.value).endswith("it ended with status 1; its last words: out of [1mdisk [0m")


@pytest.mark.parametrize("lie", ["line", "stranger", "shapeless", "deep", "forever"])
def test_what_is_no_answer_ends_at_the_deadline_at_the_latest(lie):
    with closing(ToolServer((*LIAR, lie), 60)) as server:
        with rejects(ServerError, "call of echo") as caught:
            server.call("echo", {}, 2)
        assert "\n" not in str(caught.value)
        if lie == "line":
            end = time.monotonic() + 60
            while alive(server.process):
                assert time.monotonic() < end, "a line without end is the last"
                time.sleep(0.05)
    assert not alive(server.process)


def test_a_server_that_talks_on_leaves_no_thread_behind():
    before = threading.active_count()
    for _ in range(3):
        with closing(ToolServer((*LIAR, "forever"), 60)) as server, pytest.raises(ServerError):
            server.call("echo", {}, 0.2)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("lie", "names"),
    [
        ("many", ("64 tools",)),
        ("name", ("tool's name",)),
        ("schema", ("20,000 characters",)),
        ("double", ("echo",)),
        ("shape", ("not start",)),
        ("garbage", ("not start",)),
        ("no schema", ("tools.1.inputSchema", "lookup")),
    ],
)
def test_tools_that_cannot_be_told_are_refused(lie, names):
    with rejects(ServerError, *names) as caught:
        ToolServer((*LIAR, lie), 60)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_it_sees_no_secret_of_the_environment_but_those_that_are_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MY_API_KEY", "for the server")
    with closing(ToolServer(COMMAND, 60, environment=("MY_API_KEY",))) as server:
        names = misbehave(server, "environment").observation.split()
    assert [name for name in names if "KEY" in name] == ["MY_API_KEY"]


def test_a_hang_meets_its_deadline_and_nothing_outlives_the_end(fragile):
    child = int(misbehave(fragile, "child").observation)
    with rejects(ServerError, "misbehave", "0.5 s"):
        misbehave(fragile, "hang", 0.5)
    assert alive(child) and alive(fragile.process)
    fragile.close()
    fragile.close()
    end = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not alive(fragile.process)


def test_a_hung_server_is_reaped_before_its_transport_closes(fragile, monkeypatch):
    """Closing the transport would reap the child, and asyncio warns on standard error that it is unknown."""
    statuses = []
    close = BaseSubprocessTransport.close

    def closing_transport(transport):
        statuses.append(transport.get_returncode())
        close(transport)

    monkeypatch.setattr(BaseSubprocessTransport, "close", closing_transport)
    with pytest.raises(ServerError):
        misbehave(fragile, "hang", 0.2)
    fragile.close()
    assert statuses[0] == -signal.SIGKILL


def test_a_crash_is_told(fragile):
    with rejects(ServerError, "call of misbehave"):
        misbehave(fragile, "crash")
    with pytest.raises(ServerError):
        fragile.call("add", {"a": 1, "b": 1}, 5)


@pytest.mark.parametrize("command", [["nonexistent"], ["true"], ["cat"], ["yes"], ["sleep", "100"], ["a\0b"]], ids=repr)
def test_what_is_no_server_is_told_in_one_line(command):
    with rejects(ServerError, "the MCP server", "start") as caught:
        ToolServer(command, 2)
    assert "\n" not in str(caught.value)


def test_a_server_is_asked_for_its_tools_once():
    assert listed_tools(COMMAND, 60.0) is listed_tools(COMMAND, 60.0)
