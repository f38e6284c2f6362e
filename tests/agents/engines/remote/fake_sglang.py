"""A server that speaks SGLang's native protocol around a real small model; see its source, 0.5.23, for each line.

``srt/managers/io_struct.py`` names the fields, ``srt/entrypoints/http_server.py`` the paths and statuses.
"""

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from gagpo.agents.engines.base import Request, Sampling
from tests.agents.engines.remote.fake_server import FakeServer

PARAMS = {"temperature", "top_p", "top_k", "max_new_tokens", "sampling_seed", "stop_token_ids"}
PARAMS |= {"skip_special_tokens", "no_stop_trim"}


class FakeSGLang(FakeServer):
    """info: what ``/server_info`` tells. spans: whether answers name the weights of each token, or of all at once.

    member: the process that is this server's part of a process group.
    """

    generating = "/generate"

    def __init__(self, model, tokenizer):
        super().__init__(model, tokenizer)
        self.info = {"enable_deterministic_inference": True, "tp_size": 1, "version": "0.5.23"}
        self.spans, self.session, self.member = True, False, None
        self.folder = tempfile.TemporaryDirectory()

    def generate(self, body):
        params = body["sampling_params"]
        assert (
            body.keys() <= {"input_ids", "return_logprob", "sampling_params", "lora_path"} and params.keys() == PARAMS
        )
        request = Request(0, np.asarray(body["input_ids"], np.int32), params["sampling_seed"], params["temperature"])
        sampling = Sampling(1.0, params["max_new_tokens"], params["top_p"])
        out, version, place = self.sample(body, request, sampling, params["stop_token_ids"])
        ids = out.ids.tolist()
        last = {"type": "stop", "matched": ids[-1]} if out.stopped else {"type": "length", "length": len(ids)}
        about = {
            "id": "1",
            "finish_reason": last,
            "prompt_tokens": len(request.prompt_ids),
            "weight_version": version,
            "num_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": [
                [value, token, None] for value, token in zip(out.logprobs.tolist(), ids, strict=True)
            ],
            "output_token_logprobs_length": len(ids),
            "reasoning_tokens": 0,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
        }
        if self.spans:
            about["weight_versions"] = [{"version": version, "start": 0, "end": len(ids)}]
        answer = {"output_ids": ids, "meta_info": about}
        return self.spoil(answer, about) if self.fault and place % self.every == 0 else (200, json.dumps(answer))

    def spoil(self, answer, about):
        fault, ids, spoken = self.fault, answer["output_ids"], about["output_token_logprobs"]
        if fault == "no tokens":
            answer["output_ids"] = None
        elif fault == "too many":
            answer["output_ids"] = ids * 600
        elif fault == "foreign token":
            ids[0] = spoken[0][1] = 10**9
        elif fault == "text":
            ids[0] = "left"
        elif fault == "short":
            spoken.pop()
        elif fault == "other token":
            spoken[-1][1] = (ids[-1] + 1) % 5
        elif fault == "nan":
            spoken[0][0] = float("nan")
        elif fault == "positive":
            spoken[0][0] = 1.0
        elif fault == "none":
            spoken[0][0] = None
        elif fault == "abort":
            about["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        elif fault == "unfinished":
            about["finish_reason"] = None
        elif fault == "another stop":
            about["finish_reason"] = {"type": "stop", "matched": "left"}
            del ids[-1], spoken[-1]
        elif fault == "old weights":
            about["weight_version"] = "older"
            about.get("weight_versions", [{}])[0]["version"] = "older"
        elif fault == "mixed weights":
            about["weight_versions"] = [{"version": "older", "start": 0, "end": 1}, *about["weight_versions"]]
        elif fault == "no version":
            del about["weight_version"], about["weight_versions"]
        elif fault == "part of a version":
            about["weight_versions"][0]["end"] -= 1
        else:
            return super().spoil(
                {"choices": [], **answer}, {"token_ids": ids, "logprobs": {"content": [{}] * len(ids)}}
            )
        return 200, json.dumps(answer)

    def look_up(self, path):
        return 200, json.dumps(self.info) if path == "/server_info" else ""

    def order(self, path, body):
        self.orders.append(path)
        act = getattr(self, path.removeprefix("/"), None)
        if act is None:
            return 404, '{"detail": "Not Found"}'
        wrong = act(**body)
        return (400, json.dumps({"success": False, "message": wrong})) if wrong else (200, '{"success": true}')

    def update_weights_from_disk(self, model_path, load_format=None, weight_version=None, flush_cache=True):
        if load_format not in ("auto", "safetensors"):  # a server begun with dummy weights would take dummy ones
            return f"Failed to get model loader: {load_format}."
        held = {}
        for file in sorted(Path(model_path).glob("*.safetensors")):
            held |= load_file(str(file))
        if not held:
            return f"Failed to get weights iterator: no weights in {model_path}"
        self.take(held, weight_version or self.version)
        return ""

    def update_weight_version(self, new_version, abort_all_requests=True):
        self.version = new_version
        return ""

    def load_lora_adapter(self, lora_name, lora_path):
        return self.load_adapter(lora_name, lora_path)

    def unload_lora_adapter(self, lora_name):
        return self.unload_adapter(lora_name)

    def begin_weight_update(self, selector="all"):
        self.session = True
        return ""

    def end_weight_update(self):
        self.session = False
        return ""

    def init_weights_update_group(self, **group):
        command = [sys.executable, "-m", "tests.agents.engines.remote.group_member", json.dumps(group)]
        self.member = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return "" if self.member.stdout.readline().strip() == "joined" else "Failed to initialize custom process group"

    def update_weights_from_distributed(self, names, dtypes, shapes, group_name, flush_cache=True):
        if not self.session:
            return "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
        path = Path(self.folder.name) / "received.safetensors"
        with suppress(BrokenPipeError):
            self.member.stdin.write(json.dumps([names, dtypes, shapes, str(path)]) + "\n")
            self.member.stdin.flush()
        if self.member.stdout.readline().strip() != "received":
            return "Failed to receive weights"
        self.take(load_file(str(path)), self.version)
        return ""

    def destroy_weights_update_group(self, group_name):
        self.close()
        return ""

    def close(self):
        if self.member is not None:
            self.member.kill()
            self.member.wait()
            with suppress(BrokenPipeError):
                self.member.stdin.close()
            self.member.stdout.close()
            self.member = None
