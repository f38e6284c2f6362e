"""SGLang servers: its native ``/generate`` from token ids, and its calls for weights, adapters and memory.

Read in the source of SGLang 0.5.23, which this follows:

- Log-probabilities (``srt/layers/sampler.py``) are the logarithm of the softmax of the logits over the temperature, of
  the whole vocabulary: top-p and top-k choose from these probabilities and do not change what is reported. At
  temperature 0 a server takes the most probable token and reports its log-probability at temperature 1. With
  ``SGLANG_RETURN_ORIGINAL_LOGPROB`` in a server's environment they are those before the temperature, which the parity
  check finds out.
- ``ignore_eos`` would switch the stop tokens off too (``Req._check_token_based_finish``), so it is not sent.
- A seed is used with ``--enable-deterministic-inference`` alone (``SamplingBatchInfo``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.remote.kinds.base import Logprob, Order, ServerAnswer, ServerKind
from gagpo.agents.engines.remote.wire import MalformedAnswer, Part, ReplicaError, RequestRefused, Span, Terms, read
from gagpo.agents.engines.vllm_arguments import spread
from gagpo.base.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

    from gagpo.agents.engines.remote.client import Client
    from gagpo.agents.engines.remote.transfer import Transfer

LOWEST = 1e-6  # temperature: a server takes the most probable token below

Spoken = tuple[Logprob, int, Any]
"""Log-probability, token, and its text or nothing."""


class _Finish(Part):
    type: str


class _About(Part):
    finish_reason: _Finish
    output_token_logprobs: list[Spoken]
    weight_version: str
    weight_versions: list[Span] | None = None


class _NativeAnswer(Part):
    output_ids: list[int]
    meta_info: _About


class SGLangServers(ServerKind):
    """See :class:`gagpo.agents.engines.remote.kinds.base.ServerKind`."""

    name = "SGLang"
    generating = "/generate"
    starting = (
        "`python -m sglang.launch_server --model-path MODEL --skip-tokenizer-init --enable-deterministic-inference`"
    )
    transfers: tuple[str, ...] = ("file", "nccl", "gloo")
    starts = False
    adapters = ""
    asleep: Order = ("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    asleep_kept: Order | None = None
    awake_weights: Order = ("/resume_memory_occupation", {"tags": ["weights"]})
    awake_cache: Order = ("/resume_memory_occupation", {"tags": ["kv_cache"]})

    def require_exact(self, request: Request, sampling: Sampling) -> None:
        temperature = sampling.temperature_of(request)
        if 0 < temperature < LOWEST:
            raise InvalidArgument(f"SGLang samples at temperature 0 or from {LOWEST:g} on, got {temperature}")

    def question(self, request: Request, sampling: Sampling, terms: Terms) -> bytes:
        body = {
            "input_ids": request.prompt_ids.tolist(),
            "return_logprob": True,
            "sampling_params": {
                "temperature": sampling.temperature_of(request),
                "top_p": sampling.top_p,
                "top_k": -1,
                "max_new_tokens": sampling.limit(request),
                "sampling_seed": spread(request.seed),
                "stop_token_ids": list(terms.stops),
                "skip_special_tokens": False,
                "no_stop_trim": True,
            },
        }
        if terms.adapter is not None:
            body["lora_path"] = terms.adapter
        return json.dumps(body).encode()

    def read_answer(self, body: bytes) -> ServerAnswer:
        answer = read(_NativeAnswer, body)
        about, ids = answer.meta_info, answer.output_ids
        sampled = [(token, logprob) for logprob, token, _ in about.output_token_logprobs]
        spans = about.weight_versions
        if spans is None:  # a server that has changed no weights under way names them once
            spans = [Span(start=0, end=len(ids), version=about.weight_version)]
        return ServerAnswer(ids, sampled, about.finish_reason.type, spans)

    def make_transfer(
        self, way: str, model: torch.nn.Module, dtype: str, device: torch.device, folder: Path
    ) -> Transfer:
        from gagpo.agents.engines.remote.kinds.sglang_transfer import DiskTransfer, GroupTransfer

        if way == "file":
            return DiskTransfer(model, dtype, folder)
        return GroupTransfer(model, dtype, device, way)

    def name_weights(self, version: str) -> Order:
        return "/update_weight_version", {"new_version": version, "abort_all_requests": False}

    async def advice(self, client: Client, deadline: float) -> str:
        try:
            told = await client.look_up("/server_info", deadline)
        except (ReplicaError, RequestRefused, MalformedAnswer):
            return ""
        if told.get("enable_deterministic_inference") is False:
            return (
                "it draws without the seeds of its requests, so a run is not repeatable and a response that is asked "
                "again is another one: start it with --enable-deterministic-inference"
            )
        return ""
