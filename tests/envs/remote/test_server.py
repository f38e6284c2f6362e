"""A server that is checked may say anything: the check ends in one line."""

import json
import re

import pytest

from gagpo.envs.remote.protocol import ServerFailed
from gagpo.envs.remote.world import remote
from tests.agents.raw_server import answering, reply

BODIES = {
    "half of a JSON": b'{"a"',
    "deep nesting": b"[" * 200_000,
    "bytes that are no UTF-8": b'"\xff"',
    "nothing": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_what_is_no_json_is_one_line(body):
    with answering(lambda number: [reply(body)]) as server, pytest.raises(ServerFailed, match="http://127") as caught:
        remote(server.url)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_body_without_end_is_not_held(monkeypatch):
    monkeypatch.setattr("gagpo.envs.remote.server.MOST", 1 << 20)
    endless = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"[" * 100_000] * 2000]
    with answering(lambda number: endless) as server, pytest.raises(ServerFailed, match="more than 1048576 bytes"):
        remote(server.url)
    assert server.sent < 100e6


def test_a_byte_now_and_then_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr("gagpo.envs.remote.server.TIMEOUT", 1.0)
    slow = [b"HTTP/1.1 200 OK\r\n\r\n", *[b" ", 0.1] * 600]
    with answering(lambda number: slow) as server, pytest.raises(ServerFailed, match="did not answer within 1 s"):
        remote(server.url)


@pytest.mark.interop
@pytest.mark.parametrize("schema", [[], {"action": []}, {"action": {"required": {}}}, "x", None, 3])
def test_a_schema_of_another_form_does_no_harm(schema):
    """Nobody speaks the protocol of sockets here, which is said in one line."""
    pytest.importorskip("websockets")
    with answering(lambda number: [reply(b"[]" if number == 0 else json.dumps(schema).encode())]) as server:
        opened = remote(server.url)
        with pytest.raises(ServerFailed, match=re.escape(server.url.removeprefix("http"))) as caught:
            opened().reset(seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.interop
@pytest.mark.parametrize(
    "said",
    [
        *("{", "[]", "null", "3", "[" * 100_000, '{"type": "observation"}', '{"type": "error", "data": 3}'),
        '{"type": "observation", "data": {"observation": {"text": "a"}, "reward": "much"}}',
        '{"type": "observation", "data": {"observation": {"text": "a"}, "reward": NaN, "metadata": 3}}',
        '{"type": "observation", "data": {"observation": {"text": "a"}, "reward": ' + "9" * 400 + "}}",
    ],
)
def test_no_message_of_a_session_brings_a_traceback(said):
    pytest.importorskip("websockets")
    import threading

    from websockets.sync.server import serve

    from gagpo.envs.remote.world import RemoteEnv

    def answer(connection):
        for _ in connection:
            connection.send(said)

    def look(connection, request):
        if request.path == "/schema":
            return connection.respond(200, "{}")
        return None

    with serve(answer, "127.0.0.1", 0, process_request=look) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = RemoteEnv(f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        try:
            env.reset(seed=0)
            env.step("left")
        except ServerFailed as error:
            assert "\n" not in str(error) and len(str(error)) < 500
        finally:
            env.close()
