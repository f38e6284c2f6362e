"""A local server that speaks OpenAI's chat protocol and plays the corridor, with faults on request."""

import json
import random
import re
import threading
import time
from contextlib import contextmanager

import flask
from werkzeug.serving import make_server

from tests.served import in_thread

_PLACES = re.compile(r"You stand at (\d+)\. Go to door (\d+)\.")


class ChatServer:
    """faults: kinds for a share ``rate`` of the requests. refused: text of requests refused after two answers."""

    def __init__(
        self, faults=(), rate=0.0, seed=0, reasoning="", delay=0.0, usage=True, style="{}", end="stop", refused=None
    ):
        self.faults, self.rate, self.reasoning, self.delay = tuple(faults), rate, reasoning, delay
        self.usage, self.style, self.end, self.refused = usage, style, end, refused
        self.rng = random.Random(seed)
        self.requests, self.answered, self.under_way, self.most = [], 0, 0, 0
        self.lock = threading.Lock()
        self.url = ""

    def app(self):
        app = flask.Flask(__name__)

        @app.post("/v1/chat/completions")
        def complete():
            body = flask.request.get_json()
            with self.lock:
                self.requests.append(body)
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                fault = self.rng.choice(self.faults) if self.faults and self.rng.random() < self.rate else ""
            if self.refused and self.refused in body["messages"][-1]["content"]:
                fault = "key"
                while self.answered < 2:
                    time.sleep(0.01)
                time.sleep(0.3)  # until those who were answered have read it
            try:
                time.sleep(self.delay)
                return self._answer(body, fault)
            finally:
                with self.lock:
                    self.under_way -= 1

        return app

    def _answer(self, body, fault):
        if fault == "hang":
            time.sleep(3)
        if fault == "error":
            return {"error": {"message": "it happens"}}, 500
        if fault == "limit":
            return {"error": {"message": "slow down"}}, 429, {"retry-after": "0.02"}
        if fault == "garbage":
            return "<html>bad gateway</html>", 200, {"content-type": "text/html"}
        if fault == "empty":
            return {"choices": []}
        if fault == "long":
            return {"error": {"message": "This model's maximum context length is 100 tokens"}}, 400
        if fault == "key":
            return {"error": {"message": "no such key"}}, 401
        matches = _PLACES.findall(body["messages"][-1]["content"])
        location, door = map(int, matches[-1]) if matches else (1, 0)
        message = {"role": "assistant", "content": self.style.format("left" if location > door else "right")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        reported = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        reported["choices"] = [{"index": 0, "finish_reason": self.end, "message": message}]
        if self.usage:
            reported["usage"] = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
            reported["usage"]["prompt_tokens_details"] = {"cached_tokens": 4}
        with self.lock:
            self.answered += 1
        return _streamed(reported) if body.get("stream") else reported


def _streamed(told):
    """The same answer as events: the text in two parts, then the usage."""
    (choice,), base = told["choices"], {**told, "object": "chat.completion.chunk"}
    base.pop("usage", None)
    text = choice["message"]["content"]
    segments = [{"role": "assistant", "content": text[:3]}, {"content": text[3:]}]
    chunks = [[{"index": 0, "delta": segment, "finish_reason": None}] for segment in segments]
    chunks.append([{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}])
    events = [{**base, "choices": choices} for choices in chunks]
    if "usage" in told:
        events.append({**base, "choices": [], "usage": told["usage"]})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]), 200, {"content-type": "text/event-stream"}


@contextmanager
def serving(**options):
    """A running server on a free port."""
    chat = ChatServer(**options)
    server = make_server("127.0.0.1", 0, chat.app(), threaded=True)
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    with in_thread(server):
        yield chat
