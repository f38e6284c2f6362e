"""vLLM servers: its generation from token ids (``--tokens-only``), its calls for weights, adapters and sleep.

Log-probabilities are those of the distribution that was sampled from (``--logprobs-mode processed_logprobs``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.remote.kinds.base import Logprob, Order, ServerAnswer, ServerKind
from gagpo.agents.engines.remote.transfer import FileTransfer, Transfer, device_transfer
from gagpo.agents.engines.remote.wire import MalformedAnswer, Part, Span, Terms, read
from gagpo.agents.engines.vllm_arguments import spread, temperature_of

if TYPE_CHECKING:
    import torch


class _Token(Part):
    token_id: int
    logprob: Logprob


class _Logprobs(Part):
    content: list[_Token]


class _Choice(Part):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: list[Span] | None = None


class _Answer(Part):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class VLLMServers(ServerKind):
    """See :class:`gagpo.agents.engines.remote.kinds.base.ServerKind`."""

    name = "vLLM"
    generating = "/inference/v1/generate"
    starting = "`python -m gagpo.agents.engines.remote.server MODEL`, which switches on what is needed"
    transfers: tuple[str, ...] = ("file", "nccl", "ipc")
    starts = True
    adapters = "/v1"
    asleep: Order = ("/sleep?level=2", None)
    asleep_kept: Order | None = ("/sleep?level=1", None)
    awake_weights: Order = ("/wake_up?tags=weights", None)
    awake_cache: Order = ("/wake_up?tags=kv_cache", None)

    def require_exact(self, request: Request, sampling: Sampling) -> None:
        temperature_of(request, sampling)

    def question(self, request: Request, sampling: Sampling, terms: Terms) -> bytes:
        body = {
            "token_ids": request.prompt_ids.tolist(),
            "cache_salt": terms.version,
            "sampling_params": {
                "temperature": temperature_of(request, sampling),
                "max_tokens": sampling.limit(request),
                "seed": spread(request.seed),
                "stop_token_ids": list(terms.stops),
                "ignore_eos": True,  # the stop tokens are ours
                "logprobs": 0,  # of the sampled token alone
                "detokenize": False,
            },
        }
        if terms.adapter is not None:
            body["model"] = terms.adapter
        return json.dumps(body).encode()

    def read_answer(self, body: bytes) -> ServerAnswer:
        (choice,) = read(_Answer, body).choices
        if choice.weight_versions is None:
            raise MalformedAnswer("the answer does not say which weights it is of; vLLM 0.32 or later does")
        sampled = [(one.token_id, one.logprob) for one in choice.logprobs.content]
        return ServerAnswer(choice.token_ids, sampled, choice.finish_reason, choice.weight_versions)

    def make_transfer(
        self, way: str, model: torch.nn.Module, dtype: str, device: torch.device, folder: Path
    ) -> Transfer:
        return FileTransfer(model, dtype, folder) if way == "file" else device_transfer(way, model, dtype, device)

    def name_weights(self, version: str) -> Order:
        return "/update_weight_version", {"new_version": version}
