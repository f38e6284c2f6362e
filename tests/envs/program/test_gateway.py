"""The server's answers to requests that are hostile or wrong: each gets one, and the other episodes go on."""

import json
import socket
import threading
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from gagpo.envs.gateway import bodies, messages, protocols, server
from gagpo.envs.gateway.messages import Completion
from tests.envs.program.programs import CHAT, PATIENCE, ask, key_of, play, running, wait

SAID = {"messages": [{"role": "user", "content": "one"}]}
ASK_TWICE = """
import urllib.error
try:
    chat(user("first"), tools=[{"type": "function", "function": {"name": "price"}}])
except urllib.error.HTTPError as error:
    reason = json.load(error)["error"]["message"]
said = chat(user("second"))
print(json.dumps({"reward": float((reason, said) == ("no place for tools", "ok"))}))
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A pool with one program, which waits, and its key."""
    with running(tmp_path_factory.mktemp("gateway"), "time.sleep(1000)\n") as pool:
        pool.reset(0, "a", 1)
        pool.flush()
        while not pool._programs:
            pass
        yield pool, key_of(pool)


def send(pool, text, count=4096):
    """What the server answers to bytes."""
    address = urlsplit(pool._server.address)
    with closing(socket.create_connection((address.hostname, address.port), PATIENCE)) as client:
        client.sendall(text)
        return client.recv(count)


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions/"),
        ("GET", "/"),
        ("DELETE", "/v1/models/gagpo"),
        ("BREW", "/v1/models"),
    ],
)
def test_every_unknown_place_is_answered_with_json(gateway, method, place):
    pool, key = gateway
    status, body = ask(pool, place, {}, key, method)
    assert (status, body["type"]) == (405 if method == "BREW" else 404, "error")
    assert ask(pool, place, {}, "wrong", method)[0] == (405 if method == "BREW" else 401)


def test_models_are_listed_and_found_by_any_name(gateway):
    pool, key = gateway
    assert ask(pool, "/v1/models", key=key, method="GET")[1]["data"][0]["id"] == "gagpo"
    for name in ("gpt-5", "meta-llama/Llama-3.1-8B"):
        status, model = ask(pool, f"/v1/models/{name}", key=key, method="GET")
        assert (status, model["id"], model["object"]) == (200, name, "model")
    assert ask(pool, "/v1/models/gpt-5", method="GET")[0] == 401


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[' + b'{"role":"judge"},' * 100_000 + b"{}]}",
        b'{"messages":[' + b"[]," * 100_000 + b"[]]}",
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b'{"messages":"' + rb"\"" * 100_000,
    ],
    ids=["messages", "lists", "deep", "unclosed"],
)
def test_a_long_invalid_body_is_refused_outside_of_the_loop(gateway, raw, monkeypatch):
    pool, key = gateway
    threads = []
    prepared = server._prepare
    monkeypatch.setattr(
        server, "_prepare", lambda *given: (threads.append(threading.current_thread().name), prepared(*given))[1]
    )
    status, body = ask(pool, raw=raw, key=key)
    assert status == 400 and "JSON" in body["error"]["message"]
    assert [name.startswith("gateway-reader") for name in threads] == [len(raw) > server.SHORT]


def test_without_a_key_no_byte_of_a_body_is_read(gateway, monkeypatch):
    pool, key = gateway
    reads = []
    read = bodies.BodyMemory.reserve
    monkeypatch.setattr(bodies.BodyMemory, "reserve", lambda held, token: (reads.append(token), read(held, token))[1])
    head = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000\r\n"
    answer = send(pool, head + b"\r\n" + b"x" * 1_000_000)
    assert answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer and reads == []
    assert ask(pool, body={}, key=key)[0] == 400 and reads == [key]
    for headers, status in ((b"", b"401"), (b"Authorization: Bearer " + key.encode() + b"\r\n", b"413")):
        head = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"Transfer-Encoding: chunked\r\n\r\n"
        answer = send(pool, head + b"1100000\r\n" + b"x" * 0x1100000)
        assert answer.startswith(b"HTTP/1.1 " + status)


def test_the_bytes_of_unanswered_requests_are_limited(gateway, monkeypatch):
    pool, key = gateway
    monkeypatch.setattr(bodies, "MAX_HELD_BYTES", 1000)
    status, body = ask(pool, body={"messages": "x" * 2000}, key=key)
    assert status == 429 and "1000 bytes" in body["error"]["message"]
    assert ask(pool, body={}, key=key)[0] == 400 and not pool._server._body_memory._bytes


def test_a_fault_of_the_gateway_is_an_answer_and_a_line(gateway, monkeypatch, caplog):
    pool, key = gateway
    refused = next(iter(pool._programs.values())).num_rejected
    monkeypatch.setattr(messages, "_REPORTED", set())

    def fail(body):
        raise KeyError("cells\x1b[2J")

    monkeypatch.setattr(protocols.openai, "read", fail)
    for _ in range(3):
        status, body = ask(pool, body=SAID, key=key)
        assert status == 500 and "KeyError" in body["error"]["message"] and "\x1b" not in body["error"]["message"]
    lines = [record.getMessage() for record in caplog.records if record.name == "gagpo"]
    assert len(lines) == 1 and "\x1b" not in lines[0] and "status 500" in lines[0]
    assert next(iter(pool._programs.values())).num_rejected == refused + 3


def test_a_request_that_the_agent_rejects_is_answered_and_the_episode_goes_on(tmp_path):
    rejected = Completion(rejected="no place for tools", status=400).action
    with running(tmp_path, ASK_TWICE) as pool:
        first, second, end = play(pool, rejected, "ok")
        assert (first.info["request"]["number"], second.info["request"]["number"]) == (0, 0)
        assert end.terminated and end.reward == 1.0 and end.info["refused"] == 1


@pytest.mark.parametrize(
    ("source", "rejects", "reason"),
    [
        (
            "chat(user('one'), response_format={'type': 'json_object'})",
            False,
            "response_format={'type': 'json_object'}",
        ),
        ("post('/v1/embeddings', {})", False, "POST /v1/embeddings is not supported"),
        ("chat(user('one'))", True, "no place for tools"),
    ],
)
def test_a_program_whose_only_request_was_refused_ends_with_the_refusal(tmp_path, source, rejects, reason):
    caught = (
        f"import urllib.error\ntry:\n    {source}\nexcept urllib.error.HTTPError:\n    print('{{\"reward\": 0}}')\n"
    )
    with running(tmp_path, caught) as pool:
        *_, end = play(pool, Completion(rejected="no place for tools", status=400).action if rejects else "ok")
        assert end.kind == "failed" and "without an answered request" in end.error and reason in end.error


def test_rejected_requests_count_for_the_limit_of_turns(tmp_path):
    source = """
import urllib.error
while True:
    try:
        chat(user("on"))
    except urllib.error.HTTPError as error:
        if error.code == 409:  # the end
            time.sleep(1000)
"""
    with running(tmp_path, source, max_turns=3) as pool:
        events = play(pool, Completion(rejected="never", status=400).action)
        assert events[-1].kind == "failed" and "the limit is 3 requests" in events[-1].error
        assert [event.kind for event in events] == ["reset", "step", "step", "restarted", "step", "step", "failed"]


def test_time_that_is_used_up_before_the_first_request_is_a_fault(tmp_path):
    with running(tmp_path, "time.sleep(1000)\n", timeout=0.5) as pool:
        (end,) = play(pool, "ok")
        assert end.kind == "failed" and "before a request was answered: 0.5 s are used up" in end.error


def test_a_stop_string_in_any_answer_ends_it(tmp_path):
    source = """
body = {"messages": [user("one")], "stop_sequences": ["END"]}
said = post("/v1/messages", body, **{"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
print(json.dumps({"reward": float((said["stop_sequence"], said["content"][0]["text"]) == ("END", "abc "))}))
"""
    with running(tmp_path, source) as pool:
        assert play(pool, "abc END def")[-1].reward == 1.0


def test_a_queue_that_fails_goes_on(tmp_path, monkeypatch):
    from gagpo.envs.gateway.conversations import Conversations

    add_request = Conversations.add_request

    def show(talk, request):
        if "broken" in json.dumps(request.conversation):
            raise IndexError("list index out of range")
        return add_request(talk, request)

    monkeypatch.setattr(Conversations, "add_request", show)
    with running(tmp_path, ASK_TWICE.replace("first", "broken").replace("no place for tools", "*")) as pool:
        pool.reset(0, "a", 1)
        event = wait(pool)
        assert event.observation == "second"
        assert CHAT and event.info["refused"] == 1
