"""Malformed, slow and endless answers of a chat server are retried, within the deadline and bounded memory."""

import json
import os
from contextlib import contextmanager

import psutil
import pytest

from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import InvalidArgument
from tests.agents.raw_server import answering, reply
from tests.rejections import rejects

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


def choice(message=None, **changes):
    return chat(choices=[{**SOUND["choices"][0], **({"message": message} if message else {}), **changes}])


FAILED = {
    "a reason": choice(finish_reason="error"),
    "an error of the choice": choice(error={"code": 502, "message": "upstream\nfailed"}),
    "an error and no message": chat(choices=[{"finish_reason": "error", "error": "upstream failed"}]),
    "an error of the whole": chat(error={"message": "upstream failed"}),
    "an error alone": b'{"error": {"code": 503}}',
    "a choice without a message": chat(choices=[{"finish_reason": "stop"}]),
}


@pytest.mark.parametrize("body", FAILED.values(), ids=FAILED.keys())
def test_a_failure_of_the_server_in_an_answer_is_retried(body, caplog):
    with answering(lambda number: [reply(body if number < 2 else chat())]) as server:
        client = client_of(server, output_price=1e6)
        answer = client.submit(ASK, 0.0, 5).result()
    assert (answer.text, answer.withheld, server.requests) == ("left", False, 3)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in warning and "trying again, 7 times at most" in warning
    paid = b'"usage"' in body and b"error" in body  # what the server says that it charges for a failure
    assert (client.spent.cost, client.spent.unanswered) == ((6, 0) if paid else (2, 2))


CONTENTS = {
    "a text": ("left", "left", ""),
    "parts": ([{"type": "text", "text": "le"}, {"type": "text", "text": "ft"}], "left", ""),
    "bare texts": (["le", "ft"], "left", ""),
    "no parts": ([], "", ""),
    "null": (None, "", ""),
    "thoughts": ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"text": "left"}], "left", "hm"),
    "thoughts as a text": ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "left"}], "left", "hm"),
    "a part of another kind": ([{"type": "image_url", "image_url": {"url": "x"}}, {"text": "left"}], "left", ""),
}


@pytest.mark.parametrize(("content", "text", "reasoning"), CONTENTS.values(), ids=CONTENTS.keys())
def test_a_content_of_parts_is_read(content, text, reasoning):
    with answering(lambda number: [reply(choice({"role": "assistant", "content": content}))]) as server:
        answer = client_of(server).submit(ASK, 0.0, 5).result()
    assert (answer.text, answer.reasoning, answer.withheld, server.requests) == (text, reasoning, False, 1)


FILTERED = b'{"error": {"code": "content_filter", "message": "The prompt triggered the policy"}}'
WITHHELD = {
    "a filter": (choice({"content": ""}, finish_reason="content_filter"), "200 OK", ""),
    "a filter amid the text": (choice({"content": "le"}, finish_reason="content_filter"), "200 OK", "le"),
    "a refusal": (choice({"content": None, "refusal": "I cannot help"}), "200 OK", "I cannot help"),
    "a refusal in parts": (choice({"content": [{"type": "refusal", "refusal": "No"}]}), "200 OK", "No"),
    "a filtered prompt": (FILTERED, "400 Bad Request", ""),
    "a forbidden prompt": (FILTERED.replace(b"filter", b"policy_violation"), "403 Forbidden", ""),
}


@pytest.mark.parametrize(("body", "status", "text"), WITHHELD.values(), ids=WITHHELD.keys())
def test_an_answer_that_the_server_withholds_is_no_attempt_of_the_model(body, status, text):
    with answering(lambda number: [reply(body, status)]) as server:
        client = client_of(server)
        answer = client.submit(ASK, 0.0, 5).result()
    assert (answer.withheld, answer.text, server.requests, client.spent.unanswered) == (True, text, 1, 0)


NAMES = {"max_tokens", "max_completion_tokens"}


@contextmanager
def knowing(name, status, text):
    """A server that knows the limit on tokens by one name and refuses the other with ``text``."""
    refusal = json.dumps({"error": {"message": text.format(*(NAMES - {name}), name)}}).encode()

    def script(number):
        return [reply(chat()) if name in json.loads(server.bodies[-1]) else reply(refusal, status)]

    with answering(script) as server:
        yield server


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("max_completion_tokens", "400 Bad Request", "Use '{1}' instead"),
        ("max_completion_tokens", "400 Bad Request", "'{0}' is not supported with this model."),
        ("max_completion_tokens", "422 Unprocessable Entity", "body.{0}: Extra inputs are not permitted"),
    ],
)
def test_the_limit_on_tokens_is_named_as_the_server_knows_it(name, status, text):
    with knowing(name, status, text) as server:
        client = client_of(server)
        assert [client.submit(ASK, 0.0, 5).result().text for _ in range(2)] == ["left", "left"]
    limits = [{key: value for key, value in json.loads(body).items() if key in NAMES} for body in server.bodies]
    assert limits == [{"max_tokens": 5}, {name: 5}, {name: 5}] and client.spent.requests == 3


def test_openai_is_asked_again_under_the_older_name(monkeypatch):
    with knowing("max_tokens", "400 Bad Request", "Unrecognized request argument supplied: {0}") as server:
        monkeypatch.setattr("gagpo.agents.api.settings.OPENAI", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        assert ApiClient(ApiSettings("m")).submit(ASK, 0.0, 5).result().text == "left"
    assert server.requests == 2


@pytest.mark.parametrize("text", ["Use 'max_completion_tokens' instead", "Unsupported parameter: 'temperature'"])
def test_a_request_that_stays_refused_is_asked_twice_at_most(text):
    refusal = json.dumps({"error": {"message": text}}).encode()
    with (
        answering(lambda number: [reply(refusal, "400 Bad Request")]) as server,
        rejects(ApiError, "status 400", text),
    ):
        client_of(server).submit(ASK, 0.0, 5).result()
    assert server.requests == 1 + ("max" in text)


@pytest.mark.parametrize(("header", "tries"), [("x-should-retry: false", "1 try"), ("x: y", "3 tries")])
def test_the_error_counts_the_attempts_that_were_made(header, tries, caplog):
    with (
        answering(lambda number: [reply(b"down", "503 Service Unavailable", header)]) as server,
        rejects(ApiError, tries, "status 503: down"),
    ):
        client_of(server, attempts=3).submit(ASK, 0.0, 5).result()
    assert server.requests == int(tries[0]) and len(caplog.records) == (tries != "1 try")


@pytest.mark.parametrize("text", [b"null", b'"2"', b"2.0"])
def test_unusual_numbers_are_read(text):
    with answering(lambda number: [reply(usage(text))]) as server:
        assert client_of(server).submit(ASK, 0.0, 5).result().usage.completion == (0 if text == b"null" else 2)


def test_repeated_malformed_answers_end_in_a_short_error():
    with (
        answering(lambda number: [reply(MALFORMED["deep nesting"])]) as server,
        rejects(ApiError, "3 tries", "malformed answer") as e,
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
        with rejects(ApiError, "status 307", "--base-url"):
            client.submit(ASK, 0.0, 5).result()
    assert server.requests == 1 and not list(client._openai._client._transport._http.cookies.jar)


def test_usage_cannot_lower_the_total():
    """More cached than read, and then a lie: the limit is reached as if the server had told the truth."""
    over = chat(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 10**6}})
    with answering(lambda number: [reply([over, usage(b"-1000000"), chat()][number % 3])]) as server:
        client = client_of(server, input_price=1e6, cached_price=0.0, output_price=1e6, limit_cost=13.0)
        assert client.submit(ASK, 0.0, 5).result().usage.cost == 2
        assert client.submit(ASK, 0.0, 5).result().usage.cost == 12
        with rejects(ApiError, "$14.00", key="limit_cost"):
            client.submit(ASK, 0.0, 5).result()


def test_every_request_is_recorded_before_it_is_sent():
    changes, observed = [], []

    def script(number):
        observed.append(len(changes))
        return [reply(chat())] if number else [reply(b"slow down", "429 Too Many Requests")]

    with answering(script) as server:
        client = client_of(server)
        client.record = changes.append
        client.submit(ASK, 0.0, 5).result()
    assert observed == [1, 3] and [(change.requests, change.unanswered) for change in changes] == [
        (1, 1),
        (0, -1),
        (1, 1),
        (0, -1),
    ]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"limit_cost": float("nan"), "input_price": 1.0}, "limit_cost"),
        ({"input_price": float("inf")}, "input_price"),
        ({"timeout": float("nan")}, "timeout"),
        ({"base_url": "127.0.0.1:8000/v1"}, "base_url"),
        ({"base_url": "file:///etc/passwd"}, "base_url"),
        ({"base_url": "http://host:port/v1"}, "base_url"),
    ],
)
def test_invalid_settings_are_named(changes, key):
    with rejects(InvalidArgument, key=key):
        ApiSettings("m", **changes)


def test_a_key_is_never_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\nx: y")
    with rejects(InvalidArgument, key="OPENAI_API_KEY"):
        ApiClient(ApiSettings("m"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")  # as a file gives it
    assert ApiClient(ApiSettings("m"))._openai.auth_headers == {"Authorization": "Bearer sk-secret"}
