"""What a browser or a hostile client may send to ``gagpo openenv``: it is refused in a line, and the server goes on."""

import json
import signal

import pytest

pytest.importorskip("openenv")
pytest.importorskip("gagpo.interop.openenv")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from benchmarks.serve import start, stop
from tests.raw_requests import asked

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


@pytest.fixture(scope="module")
def url():
    server, address = start(CORRIDOR, '{"port": 0, "workers": 0}')
    yield address
    assert stop(server) in (0, 130, -signal.SIGINT)


def posted(url, path, body, **headers):
    return asked(url, "POST", path, body, content_type="application/json", **headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_pages_of_other_sites_are_refused(url, headers):
    for method, path in (("GET", "/health"), ("HEAD", "/health"), ("OPTIONS", "/reset"), ("POST", "/reset")):
        status, answer = asked(url, method, path, content_type="application/json", **headers)
        assert status == 403 and b"cross-origin-resource-policy: same-origin" in answer
    names = {name.replace("_", "-"): value for name, value in headers.items() if name != "host"}
    if names:
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(url.replace("http", "ws") + "/ws", additional_headers=names),
        ):
            pass
        assert refused.value.response.status_code == 403
    else:
        lines = {"upgrade": "websocket", "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "sec_websocket_version": "13"}
        assert asked(url, path="/ws", **{**lines, "connection": "upgrade", **headers})[0] == 403


def test_its_own_pages_and_programs_are_answered(url):
    assert posted(url, "/reset", b'{"seed": 1}', origin=url, sec_fetch_site="same-origin")[0] == 200
    assert b"cross-origin-resource-policy: same-origin" in asked(url, path="/health")[1]
    with connect(url.replace("http", "ws") + "/ws", additional_headers={"origin": url}) as socket:
        socket.send(json.dumps({"type": "reset", "data": {"seed": 1}}))
        assert json.loads(socket.recv(timeout=20))["type"] == "observation"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/reset", b'{"split": {}}'),
        ("/reset", b'{"split": ["test"]}'),
        ("/reset", b'{"split": NaN}'),
        ("/reset", b'{"task": {}}'),
        ("/reset", b'{"task": [[]]}'),
        ("/reset", b'{"seed": NaN}'),
        ("/reset", b'{"seed": 1e400}'),
        ("/reset", b'{"seed": ' + b"9" * 400 + b"}"),
        ("/reset", b'{"seed": ' + b"9" * 10_000 + b"}"),
        ("/reset", b'{"index": NaN}'),
        ("/reset", b'{"index": {}}'),
        ("/reset", b'{"episode_id": "\\ud800"}'),
        ("/reset", b'{"\\ud800": 1}'),
        ("/reset", b"[" * 100_000),
        ("/reset", b'{"a":' * 20_000),
        ("/reset", b"\xff\xfe{}"),
        ("/reset", b"NaN"),
        ("/step", b'{"action": NaN}'),
        ("/step", b'{"action": {"action": {"a": NaN}}}'),
        ("/step", b'{"action": {"action": "left", "metadata": {"a": NaN}}}'),
        ("/step", b'{"timeout_s": NaN, "action": {"action": "left"}}'),
        ("/step", b'{"timeout_s": -1e999, "action": {"action": "left"}}'),
        ("/mcp", b'{"jsonrpc": "2.0", "method": "\\ud800", "id": 1}'),
        ("/mcp", b'{"jsonrpc": "2.0", "method": "tools/list", "id": "\\ud800"}'),
        ("/mcp", b'{"jsonrpc": "2.0", "method": NaN, "id": NaN}'),
        ("/mcp", b'{"jsonrpc": "2.0", "method": {}, "id": []}'),
    ],
)
def test_no_body_brings_a_traceback(url, path, body):
    status, answer = posted(url, path, body)
    assert 200 <= status < 500, answer
    assert b"traceback" not in answer
    assert posted(url, "/reset", b'{"seed": 1}')[0] == 200
