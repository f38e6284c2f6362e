"""Commands to the browser: deadlines, dialogs, pages that are left, and answers that make no sense."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from gagpo.envs.web.devtools import SocketDevTools
from gagpo.envs.web.errors import BrowserLost, Navigated
from tests.rejections import rejects

pytest.importorskip("websocket", reason="needs Selenium: pip install -c constraints.txt -e '.[web]'")


@contextlib.contextmanager
def browser(answer):
    """A server that takes one websocket, and its port. ``answer`` gets a message and returns frames to send."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent = []

    def serve():
        stream, _ = listener.accept()
        with stream, contextlib.suppress(OSError):
            _shake_hands(stream)
            while message := _read(stream):
                sent.append(message)
                for frame in answer(message):
                    stream.sendall(frame)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], sent
    finally:
        listener.close()
        thread.join(5)


def _shake_hands(stream):
    import base64
    import hashlib

    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += stream.recv(4096)
    assert b"origin:" not in head.lower()
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
    key = fields["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    stream.sendall("\r\n".join([*lines, f"Sec-WebSocket-Accept: {accept}", "", ""]).encode())


def _read(stream):
    head = stream.recv(2, socket.MSG_WAITALL)
    if len(head) < 2 or head[0] & 15 == 8:
        return None
    length = head[1] & 127
    if length == 126:
        length = int.from_bytes(stream.recv(2, socket.MSG_WAITALL), "big")
    mask = stream.recv(4, socket.MSG_WAITALL)
    data = stream.recv(length, socket.MSG_WAITALL)
    return json.loads(bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))


def frame(message):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    assert len(data) < 126
    return bytes([0x81, len(data)]) + data


def result(message, value=None):
    return frame({"id": message["id"], "result": value or {}})


def answering(frames):
    """Answers every command with a result, and ``probe`` with the frames that ``frames`` makes of it."""
    return lambda message: frames(message) if message["method"] == "probe" else [result(message)]


def test_a_command_returns_its_own_answer_among_events_and_other_answers():
    event, late = frame({"method": "Page.loadEventFired"}), frame({"id": 99, "result": {"other": 1}})
    with browser(answering(lambda message: [event, late, result(message, {"value": 3})])) as (port, sent):
        tools = SocketDevTools(port, "page", 5.0)
        assert tools.command("probe", {"text": "\ud800é"}) == {"value": 3}
        tools.close()
        tools.close()
    assert [message["method"] for message in sent] == ["Inspector.enable", "Page.enable", "probe"]
    assert sent[-1]["params"] == {"text": "\ud800é"}


def test_a_dialog_of_the_browser_is_accepted_while_a_command_waits():
    requests = frame({"method": "Page.javascriptDialogOpening", "params": {"type": "beforeunload"}})
    with browser(answering(lambda message: [requests, result(message)])) as (port, sent):
        tools = SocketDevTools(port, "page", 5.0)
        tools.command("probe", {})
        tools.command("probe", {})
        tools.close()
    accepted = [message for message in sent if message["method"] == "Page.handleJavaScriptDialog"]
    assert accepted
    assert accepted[0]["params"] == {"accept": True}


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        (lambda message: [frame({"method": "Inspector.targetCrashed"})], BrowserLost, "page crashed"),
        (lambda message: [frame({"method": "Inspector.detached"})], BrowserLost, "page crashed"),
        (lambda message: [b"\x88\x00"], BrowserLost, "the browser ended"),
        (lambda message: [frame(b"no json")], BrowserLost, "the browser ended"),
        (lambda message: [frame(b"[1]")], BrowserLost, "the browser ended"),
        (lambda message: [frame({"id": message["id"]})], BrowserLost, "the browser ended"),
        (lambda message: [frame({"id": message["id"], "error": {"message": "odd"}})], BrowserLost, "ended: odd"),
        (lambda message: [frame({"id": message["id"], "error": "odd"})], BrowserLost, "ended: odd"),
        (
            lambda message: [frame({"id": message["id"], "error": {"message": "Cannot find context with id"}})],
            Navigated,
            "Cannot find context",
        ),
    ],
)
def test_what_goes_wrong_has_a_name(frames, error, words):
    with browser(answering(frames)) as (port, _):
        tools = SocketDevTools(port, "page", 5.0)
        with pytest.raises(error, match=words):
            tools.command("probe", {})
        tools.close()


def test_a_deadline_holds_for_silence_and_for_events_without_end():
    chatter = frame({"method": "Page.frameResized"}) * 50
    for frames in ([], [chatter]):
        with browser(answering(lambda message, frames=frames: frames)) as (port, _):
            tools = SocketDevTools(port, "page", 0.3)
            begun = time.monotonic()
            with pytest.raises(TimeoutError, match=r"probe was not answered in 0.3 s"):
                tools.command("probe", {})
            assert time.monotonic() - begun < 3
            tools.close()


def test_a_browser_that_is_not_there_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with rejects(BrowserLost, "not answer"):
        SocketDevTools(port, "page", 1.0)


def test_the_users_proxy_is_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with browser(answering(lambda message: [result(message, {"value": 1})])) as (port, _):
        tools = SocketDevTools(port, "page", 5.0)
        assert tools.command("probe", {}) == {"value": 1}
        tools.close()
