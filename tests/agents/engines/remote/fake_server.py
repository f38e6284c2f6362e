"""A server that speaks vLLM's protocol around a real small model, with faults on request."""

import copy
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.model.weights import named_tensors
from tests.served import LOOK_SECONDS, Listening

WHOLE = {
    "error": (500, '{"error": "it happens"}'),
    "refuse": (400, '{"error": "the prompt is no good"}'),
    "forbidden": (404, '{"detail": "Not Found"}'),
    "html": (200, "<html>bad gateway</html>"),
    "deep": (200, "[" * 100_000),
    "nothing": (200, ""),
    "drop": (0, ""),
}
"""By fault: status and body of an answer that holds no response."""

SPELLED = {"400 digits": "9" * 400, "minus 400 digits": "-" + "9" * 400, "1e999": "-1e999"}  # as no writer of JSON does


def answer_of(ids, logprobs, stopped, version):
    """What vLLM answers."""
    content = [{"token_id": i, "logprob": v, "rank": 1, "top_logprobs": []} for i, v in zip(ids, logprobs, strict=True)]
    choice = {
        "index": 0,
        "finish_reason": "stop" if stopped else "length",
        "token_ids": ids,
        "logprobs": {"content": content},
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
    }
    return {"request_id": "1", "choices": [choice]}


def spoiled(answer, fault):
    """Status and body of an answer with a fault."""
    (choice,) = answer["choices"]
    ids, content = choice["token_ids"], choice["logprobs"]["content"]
    if fault in WHOLE:
        return WHOLE[fault]
    if fault == "huge":
        return 200, '{"x": "' + "x" * 5_000_000 + '"}'
    if fault == "empty":
        answer["choices"] = []
    elif fault == "no tokens":
        choice["token_ids"] = None
    elif fault == "too many":
        choice["token_ids"] = ids * 600
    elif fault == "foreign token":
        ids[0] = content[0]["token_id"] = 10**9
    elif fault == "text":
        ids[0] = "left"
    elif fault == "short":
        content.pop()
    elif fault == "other token":
        content[-1]["token_id"] = (ids[-1] + 1) % 5
    elif fault == "nan":
        content[0]["logprob"] = float("nan")
    elif fault in SPELLED:
        content[0]["logprob"] = "@"
        return 200, json.dumps(answer).replace('"@"', SPELLED[fault])
    elif fault == "a token of 400 digits":
        ids[0] = content[0]["token_id"] = int("9" * 400)
    elif fault == "surrogate":
        return 200, json.dumps({**answer, "request_id": "\ud800"})
    elif fault == "not UTF-8":
        return 200, json.dumps(answer).encode().replace(b'"index"', b'"ind\xff"')
    elif fault == "half":
        return 200, json.dumps(answer)[:60]
    elif fault == "positive":
        content[0]["logprob"] = 1.0
    elif fault == "missing":
        content[0]["logprob"] = -9999.0
    elif fault == "abort":
        choice["finish_reason"] = "abort"
    elif fault == "cut":
        choice["finish_reason"] = "length"
        del ids[-1], content[-1]
        choice["weight_versions"][0]["end"] -= 1
    elif fault == "old weights":
        choice["weight_versions"][0]["version"] = "older"
    elif fault == "mixed weights":
        choice["weight_versions"] = [{"version": "older", "start": 0, "end": 1}, *choice["weight_versions"]]
    elif fault == "no version":
        choice["weight_versions"] = None
    elif fault == "part of a version":
        choice["weight_versions"][0]["end"] -= 1
    return 200, json.dumps(answer)


class FakeServer:
    """Samples as the transformers engine does, from weights that arrive in files.

    fault: fault of every ``every``-th request for tokens, see :func:`spoiled`.
    silent: nothing is answered any more.
    gone: all connections end.
    deaf: updates are accepted and not applied.
    takes_lora: adapters can be loaded.
    asked: the bodies of requests for tokens.
    """

    generating = "/inference/v1/generate"

    def __init__(self, model, tokenizer):
        self.model = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        self.engine = TransformersEngine(self.model, tokenizer)
        self.version, self.loading, self.parameters = "default", None, 0
        self.fault, self.every, self.silent, self.deaf = "", 1, False, False
        self.asked, self.orders, self.lock = [], [], threading.Lock()
        self.free = threading.Event()  # lets those go that hang
        self.url = ""
        self.delay = 0.0
        self.gone = False
        self.takes_lora, self.below, self.adapters = False, {}, {}

    def die(self):
        """Behave like a killed process: the port closes, and open connections end."""
        self.gone = True
        self.http.shutdown()
        self.http.server_close()

    def sample(self, body, request, sampling, stops):
        """The response, the weights that it is of, and which answer this is."""
        with self.lock:
            self.asked.append(body)
            location = len(self.asked)
            version = self.version
            self.engine.release(0)
            self.engine.stops = stops
            if body.get("model") not in (None, *self.adapters):
                raise LookupError(f"the model {body['model']} does not exist")
            (out,) = self.engine.generate([request], sampling)
        self.free.wait(self.delay)
        return out, version, location

    def generate(self, body):
        params = body["sampling_params"]
        request = Request(0, np.asarray(body["token_ids"], np.int32), params["seed"], params["temperature"])
        sampling = Sampling(1.0, params["max_tokens"])
        out, version, location = self.sample(body, request, sampling, params["stop_token_ids"])
        answer = answer_of(out.ids.tolist(), out.logprobs.tolist(), out.stopped, version)
        if not self.fault or location % self.every:
            return 200, json.dumps(answer)
        if self.fault == "hang":
            self.free.wait(60)
        return spoiled(answer, self.fault)

    def order(self, path, body):
        self.orders.append(path)
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            if not self.takes_lora:
                return 404, '{"detail": "Not Found"}'
            wrong = (self.load_adapter if path == "/v1/load_lora_adapter" else self.unload_adapter)(**body)
            return (400, json.dumps({"error": wrong})) if wrong else (200, "Success")
        if path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/init_weight_transfer_engine":
            self.parameters = body["init_info"]["parameters"]
        elif path == "/start_weight_update":
            if self.loading is not None:
                return 500, "start_weight_update called while a weight update is already active"
            self.loading = {}
        elif path == "/update_weights":
            self.loading |= load_file(body["update_info"]["path"])
        elif path == "/finish_weight_update":
            loading, self.loading = self.loading, None
            if body is None or len(loading) != self.parameters:
                return 500, f"{len(loading)} of {self.parameters} tensors came"
            self.take(loading, body["weight_version"])
        return 200, "{}"

    def load_adapter(self, lora_name, lora_path):
        """Apply an adapter to the weights below it, as peft does, in place of the last one; returns an error or ''."""
        if lora_name in self.adapters:
            return f"the adapter {lora_name} has been loaded"
        config = json.loads((Path(lora_path) / "adapter_config.json").read_text())
        adapter = load_file(str(Path(lora_path) / "adapter_model.safetensors"))
        self.adapters[lora_name] = adapter
        with self.lock, torch.no_grad():
            self.below = self.below or {name: p.clone() for name, p in self.model.named_parameters()}
            for name, parameter in self.model.named_parameters():
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_%s.weight"
                if key % "A" in adapter and not self.deaf:
                    scale = config["lora_alpha"] / config["r"]
                    parameter.copy_(self.below[name] + scale * adapter[key % "B"] @ adapter[key % "A"])
            self.engine.load_weights(named_tensors(self.model, merged=False))
        return ""

    def unload_adapter(self, lora_name):
        return "" if self.adapters.pop(lora_name, None) is not None else f"the adapter {lora_name} cannot be found"

    def take(self, tensors, version):
        """New weights."""
        with self.lock, torch.no_grad():
            if not self.deaf:
                names = dict(self.model.named_parameters())
                for name, tensor in tensors.items():
                    names[name].copy_(tensor)
                self.engine.load_weights(named_tensors(self.model, merged=False))
            self.version, self.below = version, {}

    def look_up(self, path):
        """The answer to a GET."""
        return 200, ""

    def restarted(self):
        """Forget everything, like a server that was restarted at the same address."""
        with self.lock, torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_()
            self.engine.load_weights(named_tensors(self.model, merged=False))
            self.version, self.below, self.adapters = "default", {}, {}

    def close(self):
        """Nothing else runs."""

    def handler(fake):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(*fake.look_up(self.path))

            def do_POST(self):
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                body = json.loads(raw) if raw else None
                try:
                    answer = fake.generate(body) if self.path == fake.generating else fake.order(self.path, body)
                except LookupError as error:
                    answer = 404, json.dumps({"error": str(error)})
                self.answer(*answer)

            def answer(self, status, text):
                if fake.silent:
                    fake.free.wait(60)
                if not status or fake.silent or fake.gone:
                    self.close_connection = True
                    return
                data = text if isinstance(text, bytes) else text.encode()
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_):
                pass

        return Handler


@contextmanager
def serving(model, tokenizer, count=1, kind=FakeServer):
    """So many servers on free ports."""
    running = []
    try:
        for _ in range(count):
            fake = kind(model, tokenizer)
            http = Listening(("127.0.0.1", 0), fake.handler())
            fake.http, fake.url = http, f"http://127.0.0.1:{http.server_address[1]}"
            threading.Thread(target=http.serve_forever, args=(LOOK_SECONDS,), daemon=True).start()
            running.append(fake)
        yield running
    finally:
        for fake in running:
            fake.free.set()
            fake.close()
            fake.http.shutdown()
            fake.http.server_close()


@contextmanager
def sampling_at(engine, fakes):
    """``engine``, closed at the end; requests from before are forgotten."""
    for fake in fakes:
        fake.asked.clear()
    yield engine
    for fake in fakes:
        fake.free.set()
    engine.close()
