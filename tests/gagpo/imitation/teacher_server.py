"""A server that tells log-probabilities of given tokens as vLLM's completions do, and breaks in every way asked for."""

import copy
import json
import time
from contextlib import contextmanager

import torch

from tests.agents.engines.remote.fake_server import FakeServer
from tests.served import Listening, in_thread


class TeacherServer(FakeServer):
    """fault: what happens to the next ``times`` requests for log-probabilities. told: what was asked."""

    def __init__(self, model, tokenizer, root):
        super().__init__(model, tokenizer)
        self.teacher, self.root, self.times, self.told = copy.deepcopy(model).eval(), root, 0, []
        self.teacher.set_attn_implementation("eager")

    def order(self, path, body):
        if path != "/v1/completions":
            return super().order(path, body)
        with self.lock:
            self.told.append(body)
            self.times -= 1
            broken = self.times >= 0
        ids = body["prompt"]
        with torch.no_grad():
            logprobs = torch.log_softmax(self.teacher(torch.tensor([ids])).logits[0].double(), -1)
        told = [
            {str(i): {"logprob": float(logprobs[n, i]), "rank": 1, "decoded_token": "?"}} for n, i in enumerate(ids[1:])
        ]
        choice = {"index": 0, "text": "", "prompt_logprobs": [None, *told]}
        return self.broken(choice) if broken else (200, json.dumps({"choices": [choice]}))

    def broken(self, choice):
        told = choice["prompt_logprobs"]
        if self.fault == "error":
            return 500, '{"error": "it happens"}'
        if self.fault == "refuse":
            return 400, '{"error": "prompt_logprobs is not allowed"}'
        if self.fault == "hang":
            time.sleep(3)
        if self.fault == "html":
            return 200, "<html>bad gateway</html>"
        if self.fault == "none":
            choice["prompt_logprobs"] = None
        if self.fault == "short":
            told.pop()
        if self.fault == "other token":
            told[-1] = {"x": told[-1].popitem()[1]}
        if self.fault == "nan":
            told[-1] = {name: {"logprob": float("nan")} for name in told[-1]}
        if self.fault == "positive":
            told[-1] = {name: {"logprob": 3.0} for name in told[-1]}
        if self.fault == "empty":
            return 200, '{"choices": []}'
        if self.fault == "huge":
            return 200, '{"x": "' + "x" * 50_000_000 + '"}'
        return 200, json.dumps({"choices": [choice]})

    def handler(self):
        fake = self

        class Handler(super().handler()):
            def do_GET(self):
                data = [{"id": "teacher", "root": fake.root}] if fake.fault != "no model" else []
                self.answer(200, json.dumps({"object": "list", "data": data}))

        return Handler


@contextmanager
def serving_teacher(model, tokenizer, root):
    fake = TeacherServer(model, tokenizer, str(root))
    http = Listening(("127.0.0.1", 0), fake.handler())
    fake.http, fake.url = http, f"http://127.0.0.1:{http.server_address[1]}"
    with http, in_thread(http):
        try:
            yield fake
        finally:
            fake.free.set()
