"""Malformed, slow and endless answers of a chat server are retried, within the deadline and bounded memory."""

import json
import os

import psutil
import pytest

from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import InvalidArgument
from tests.agents.raw_server import answering, reply

ASK = [{"role": "user", "content": "Left or right?"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
SOUND = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "left"}}]}


def chat(**changes):
    return json.dumps({**SOUND, "usage": USAGE, **changes}).encode()


def usage(text):
    """An answer whose number of written tokens is spelled ``text``."""
    return chat(usage={**USAGE, "completion_tokens": "@"}).replace(b'"@"', text)


MALFORMED = {
    "half of a JSON": chat()[:40],
    "an empty body": b"",
    "bytes that are no UTF-8": chat().replace(b"left", b"l\xffft"),
    "half of a surrogate pair": chat().replace(b"left", b"\\ud800"),
    "deep nesting": b"[" * 200_000,
    "deep nesting within": chat(more=None).replace(b"null", b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "a number of 10,000 digits": chat(more=0).replace(b'"more": 0', b'"more": ' + b"9" * 10_000),
    "no object": b"[]",
    "nothing": b"null",
    "an error with status 200": b'{"error": {"message": "busy"}}',
    "no choice": chat(choices=[]),
    "a message that is none": chat(choices=[{"message": "left"}]),
    "a content that is none": chat(choices=[{"message": {"content": {"text": "left"}}}]),
    "usage in words": usage(b'"many"'),
    "usage below zero": usage(b"-1000000"),
    "usage that is no number": usage(b"NaN"),
    "usage without end": usage(b"Infinity"),
    "usage of 400 digits": usage(b"9" * 400),
    "usage that is a list": chat(usage=[10, 2]),
    "cached tokens below zero": chat(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": -(10**12)}}),
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)


def client_of(server, **changes):
    return ApiClient(ApiSettings("m", f"{server.url}/v1", **{"timeout": 20.0, **changes}))


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_answers_are_retried(body):
    with answering(lambda number: [reply(body if number < 2 else chat())]) as server:
        client = client_of(server)
        answer = client.submit(ASK, 0.0, 5).result()
    assert answer.text == "left" and server.requests == 3
    assert (answer.usage.requests, answer.usage.unanswered) == (3, 2) and answer.usage == client.spent
    assert (client.spent.prompt, client.spent.completion) == (10, 2)


@pytest.mark.parametrize("text", [b"null", b'"2"', b"2.0"])
def test_unusual_numbers_are_read(text):
    with answering(lambda number: [reply(usage(text))]) as server:
        assert client_of(server).submit(ASK, 0.0, 5).result().usage.completion == (0 if text == b"null" else 2)


def test_repeated_malformed_answers_end_in_a_short_error():
    with (
        answering(lambda number: [reply(MALFORMED["deep nesting"])]) as server,
        pytest.raises(ApiError, match="no answer in 3 tries; the last time: malformed answer at its beginning") as e,
    ):
        client_of(server, attempts=3).submit(ASK, 0.0, 5).result()
    assert "\n" not in str(e.value) and len(str(e.value)) < 500


BROKEN = {
    "no HTTP": [b"220 mail.example ESMTP\r\n\r\n"],
    "another length": [reply(chat()).replace(b"content-length: ", b"content-length: 9")],
    "a length below zero": [reply(chat()).replace(b"content-length: ", b"content-length: -")],
    "a chunk that is none": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
    "a header without end": [b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 60_000] * 10],
    "an encoding that nobody asked for": [reply(chat(), "200 OK", "content-encoding: gzip")[:-10]],
    "nothing at all": [],
}


@pytest.mark.parametrize("steps", BROKEN.values(), ids=BROKEN.keys())
def test_broken_http_is_retried(steps):
    with answering(lambda number: steps if number == 0 else [reply(chat())]) as server:
        assert client_of(server).submit(ASK, 0.0, 5).result().text == "left"
    assert server.requests == 2


DRIBBLES = {
    "a body": lambda: [b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", *([b" ", 0.1] * 600)],
    "a header": lambda: [b"HTTP/1.1 200 OK\r\nx: ", *([b"y", 0.1] * 600)],
    "chunks": lambda: [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *([b"1\r\n \r\n", 0.1] * 600)],
    "interim answers": lambda: [b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.1] * 600,
}


@pytest.mark.parametrize("steps", DRIBBLES.values(), ids=DRIBBLES.keys())
def test_slow_bytes_do_not_extend_the_deadline(steps):
    """Each of these would send for a minute."""
    with answering(lambda number: steps() if number == 0 else [reply(chat())]) as server:
        assert client_of(server, timeout=1.0).submit(ASK, 0.0, 5).result().text == "left"
    assert server.requests == 2


def test_a_status_other_than_200_is_retried():
    with answering(lambda number: [reply(chat(), "200 OK" if number else "206 Partial Content")]) as server:
        assert client_of(server).submit(ASK, 0.0, 5).result().text == "left"
    assert server.requests == 2


def test_an_endless_body_is_not_kept_in_memory():
    megabyte = b"x" * (1 << 20)
    endless = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *[b"100000\r\n" + megabyte + b"\r\n"] * 1000]
    process = psutil.Process(os.getpid())
    with answering(lambda number: endless if number == 0 else [reply(chat())]) as server:
        before = process.memory_info().rss
        assert client_of(server).submit(ASK, 0.0, 5).result().text == "left"
        assert process.memory_info().rss - before < 100e6
    assert server.sent < 100e6


def test_a_redirect_is_not_followed_and_a_cookie_not_kept():
    steps = [reply(b"", "307 Temporary Redirect", "location: http://127.0.0.1:9/v1", "set-cookie: a=b")]
    with answering(lambda number: steps) as server:
        client = client_of(server)
        with pytest.raises(ApiError, match=r"status 307.*is --base-url the server's own address"):
            client.submit(ASK, 0.0, 5).result()
    assert server.requests == 1 and not list(client._openai._client._transport._http.cookies.jar)


def test_usage_cannot_lower_the_total():
    """More cached than read, and then a lie: the limit is reached as if the server had told the truth."""
    over = chat(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 10**6}})
    with answering(lambda number: [reply([over, usage(b"-1000000"), chat()][number % 3])]) as server:
        client = client_of(server, input_price=1e6, cached_price=0.0, output_price=1e6, limit_cost=13.0)
        assert client.submit(ASK, 0.0, 5).result().usage.cost == 2
        assert client.submit(ASK, 0.0, 5).result().usage.cost == 12
        with pytest.raises(ApiError, match=r"\$14.00 is spent"):
            client.submit(ASK, 0.0, 5).result()


def test_every_request_is_recorded_before_it_is_sent():
    changes, seen = [], []

    def script(number):
        seen.append(len(changes))
        return [reply(chat())] if number else [reply(b"slow down", "429 Too Many Requests")]

    with answering(script) as server:
        client = client_of(server)
        client.record = changes.append
        client.submit(ASK, 0.0, 5).result()
    assert seen == [1, 3] and [(one.requests, one.unanswered) for one in changes] == [(1, 1), (0, -1), (1, 1), (0, -1)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limit_cost": float("nan"), "input_price": 1.0}, "limit_cost must be a finite number"),
        ({"input_price": float("inf")}, "input_price must be a finite number"),
        ({"timeout": float("nan")}, "timeout must be a finite number"),
        ({"base_url": "127.0.0.1:8000/v1"}, "not an http address"),
        ({"base_url": "file:///etc/passwd"}, "not an http address"),
        ({"base_url": "http://host:port/v1"}, "not an http address"),
    ],
)
def test_invalid_settings_are_named(changes, said):
    with pytest.raises(InvalidArgument, match=said):
        ApiSettings("m", **changes)


def test_a_key_is_never_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\nx: y")
    with pytest.raises(InvalidArgument, match="OPENAI_API_KEY holds characters that no key has"):
        ApiClient(ApiSettings("m"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")  # as a file gives it
    assert ApiClient(ApiSettings("m"))._openai.auth_headers == {"Authorization": "Bearer sk-secret"}
