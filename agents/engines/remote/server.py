"""Start vLLM servers, by the trainer itself or for a trainer elsewhere.

    python -P -m gagpo.agents.engines.remote.server MODEL --port 8000 [--host 0.0.0.0] [-- vLLM's own options]

starts one in the foreground for a trainer elsewhere, which sends the weights. Anyone who reaches the port can send
weights, so allow only the trainer.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from gagpo.agents.engines.remote.adapter_transfer import RANKS, max_rank
from gagpo.agents.engines.remote.placement import CPU_CACHE_BYTES, GPU_MEMORY, require_vllm, visible_gpu
from gagpo.agents.engines.remote.transfer import BACKEND
from gagpo.base.child import Child, RestartBudget, free_port
from gagpo.base.errors import InvalidArgument
from gagpo.base.interpreter import command, module_path
from gagpo.base.rank import Rank
from gagpo.base.tables import ascii_only
from gagpo.model.dtypes import dtype_of
from gagpo.model.loading import ModelError
from gagpo.model.shape import key_value_shape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from gagpo.agents.engines.remote.options import VLLMOptions

LOG = logging.getLogger("gagpo")

SUPERVISOR = "gagpo.agents.engines.remote.supervisor:main"
CPU_BLOCK = 32  # tokens of a cache block on a CPU: prompts are shared in whole blocks
CPU_STEP = 8192  # tokens read in one step on a CPU
POLL_SECONDS = 0.25
CLOSE_SECONDS = 15.0
BACKENDS = {"files": BACKEND, "nccl": "nccl"}
"""vLLM's names of the ways in which weights come, by ``engine.options.transfer``."""

EXTENSION = "gagpo.agents.engines.remote.vllm_extension.WorkerExtension"


@dataclass(frozen=True)
class ServerPlan:
    """Arguments of a server.

    folder: folder of the model's config.
    dtype: what it computes in, by name.
    max_length: most tokens of a prompt and its response; None for the model's limit.
    architecture: name of the model's class.
    memory: fraction of each GPU's memory.
    devices: numbers of its GPUs, ``()`` for a CPU.
    sleeps: whether it can free its GPU.
    threads: CPU threads of a server without GPUs.
    backend: vLLM's name of the way in which weights come.
    max_lora_rank: maximum rank of the adapter that it can load; None to load none.
    more: further arguments for vLLM's command line.
    """

    folder: str
    dtype: str = "float32"
    max_length: int | None = None
    architecture: str | None = None
    memory: float | None = None
    devices: tuple[int, ...] = ()
    sleeps: bool = False
    threads: int = 1
    backend: str = BACKEND
    max_lora_rank: int | None = None
    more: tuple[str, ...] = ()


def arguments(plan: ServerPlan) -> list[str]:
    """vLLM's command line, without host and port."""
    from transformers import AutoConfig

    line = ["--model", plan.folder, "--load-format", "dummy", "--skip-tokenizer-init", "--tokens-only"]
    line += ["--dtype", plan.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    line += ["--enable-prefix-caching", "--weight-transfer-config", json.dumps({"backend": plan.backend})]
    line += ["--worker-extension-cls", EXTENSION]
    if plan.max_length is not None:
        line += ["--max-model-len", str(plan.max_length)]
    if plan.architecture is not None:
        line += ["--hf-overrides", json.dumps({"architectures": [plan.architecture]})]
    if not plan.devices:
        config = AutoConfig.from_pretrained(plan.folder).get_text_config()
        size = dtype_of(plan.dtype).itemsize
        options = _cpu_arguments(config, size, plan.max_length or int(config.max_position_embeddings))
        for name, value in options.items():
            flag = name.replace("_", "-")
            line += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    else:
        line += ["--tensor-parallel-size", str(len(plan.devices))]
        line += ["--gpu-memory-utilization", str(plan.memory or GPU_MEMORY["separate"])]
        line += ["--enable-sleep-mode"] if plan.sleeps else []
    if plan.max_lora_rank is not None:
        line += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(plan.max_lora_rank)]
    return [*line, *plan.more]


def _cpu_arguments(config: PreTrainedConfig, item_bytes: int, max_length: int) -> dict[str, int]:
    """vLLM's arguments about memory on a CPU, for a model with ``item_bytes`` per number."""
    token = 2 * math.prod(key_value_shape(config)) * item_bytes
    return {
        "kv_cache_memory_bytes": max(CPU_CACHE_BYTES, token * (max_length + 2 * CPU_BLOCK)),
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        # A seeded request whose prompt is read in two steps fails: a CPU's generator cannot go back.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_STEP, max_length),
    }


def environment(plan: ServerPlan) -> dict[str, str]:
    """The environment variables of a server's process."""
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # enables the calls that bring weights
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(module_path()),
    }
    if plan.max_lora_rank is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if plan.devices:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, plan.devices))
    else:  # vLLM would bind the threads of all servers to the first core
        variables |= {"OMP_NUM_THREADS": str(plan.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return {**inherited, **variables}


def plan_servers(
    plan: ServerPlan, options: VLLMOptions, placement: str, device: torch.device, rank: Rank
) -> list[ServerPlan]:
    """The plans of a rank's servers: ``plan`` on separate GPUs.

    options: number of servers and GPUs; ``gpus`` are shared by all ranks on the machine.
    placement: ``separate`` or ``colocated``.
    device: device of the rank.

    Raises: InvalidArgument if these do not fit together.
    """
    count = options.replicas or 1
    if placement == "colocated" and count != 1:
        raise InvalidArgument(
            f"engine.options.replicas must be 1 when colocated (got {count})", key="engine.options.replicas"
        )
    devices: list[tuple[int, ...]] = [()] * count
    if device.type == "cuda" and placement == "colocated":
        devices = [(visible_gpu(device.index or 0),)]
    elif device.type == "cuda" or options.gpus:
        gpus, size = options.gpus, options.tensor_parallel_size
        needed = count * size * rank.local_world_size
        if len(gpus) != needed:
            ranks = f" at each of {rank.local_world_size} ranks" if rank.local_world_size > 1 else ""
            raise InvalidArgument(
                f"engine.options.gpus must name {needed} GPUs for {count} replicas of {size}{ranks}, got {len(gpus)}",
                key="engine.options.gpus",
            )
        rank_gpus = gpus[count * size * rank.local :]
        devices = [tuple(rank_gpus[size * n : size * (n + 1)]) for n in range(count)]
    memory = plan.memory or GPU_MEMORY[placement]
    threads = max(1, (os.cpu_count() or 1) // count)
    return [replace(plan, devices=server_gpus, memory=memory, threads=threads) for server_gpus in devices]


class Server:
    """A server on this machine, which ends with :meth:`close` and with this process.

    log: file to which the server's output is appended.
    """

    def __init__(self, plan: ServerPlan, log: Path, host: str = "127.0.0.1"):
        require_vllm()
        self.plan = plan
        self.log = log
        self.host = host
        self.port = 0
        self.process: int | None = None
        self._supervisor: Child | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._supervisor is not None and self._supervisor.running

    def start(self) -> None:
        """Start in place of what runs, without waiting until it is ready."""
        self.close()
        self.port = free_port(self.host)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        server = command("-m", "vllm.entrypoints.openai.api_server")
        server += ["--host", self.host, "--port", str(self.port), *arguments(self.plan)]
        # The supervisor ends the server with all its processes when the pipe to this process closes, however this
        # process ends.
        with open(self.log, "ab") as log:
            self._supervisor = Child(SUPERVISOR, *server, variables=environment(self.plan), output=log)
            pipe = self._supervisor.start()
        with suppress(EOFError, OSError):
            self.process = pipe.receive(CLOSE_SECONDS)

    def wait(self, deadline: float) -> None:
        """Wait until the server is ready. Raises: ModelError if it ends, or after ``deadline`` seconds."""
        if not self.ready(deadline):
            self.close()
            raise ModelError(f"a vLLM server was not ready after {deadline:g} s", advice=f"see {self.log}")

    def ready(self, seconds: float) -> bool:
        """Whether the server is ready within ``seconds``. Raises: ModelError if it has ended."""
        end = time.monotonic() + seconds
        while True:
            if not self.running:
                raise ModelError(
                    f"a vLLM server ended while it started: {last_error_line(self.log)} (all of it: {self.log})"
                )
            if is_up(f"{self.url}/health", 2.0):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End the server with all its processes; may be called twice."""
        supervisor = self._supervisor
        self._supervisor = None
        self.process = None
        if supervisor is not None:
            supervisor.end(CLOSE_SECONDS)


class StartedServers:
    """The servers that an engine has started.

    restarts: maximum in an hour, so that a server that cannot run does not fill a night with starts.
    start_timeout: seconds for a server to start.
    """

    def __init__(self, restarts: int, start_timeout: float):
        self.all: list[Server] = []
        self.budget = RestartBudget(restarts)
        self._start_timeout = start_timeout
        self._reported: set[int] = set()  # servers that were reported to stay lost

    def start(self, servers: Iterable[Server]) -> None:
        """Start servers in place of those that run. Raises: ModelError if one ends or takes too long."""
        self.close()
        self.all += servers
        for server in self.all:  # all at once, then wait: each loads for minutes
            server.start()
        for server in self.all:
            server.wait(self._start_timeout)

    def restart(self, number: int) -> bool:
        """Restart a server; returns False if that fails or the budget is used up."""
        if not self.budget.take():
            if number not in self._reported:
                LOG.warning("a vLLM server stays lost: the restarts of this hour (%d) are used up", self.budget.most)
            self._reported.add(number)
            return False
        self._reported.discard(number)
        server = self.all[number]
        try:
            server.start()
            server.wait(self._start_timeout)
        except ModelError as error:
            LOG.warning("a vLLM server could not be started again: %s", ascii_only(str(error)))
            return False
        LOG.warning("started a vLLM server again, now %s", server.url)
        return True

    def close(self) -> None:
        """End all servers; may be called twice."""
        for server in self.all:
            server.close()
        self.all.clear()


def is_up(url: str, deadline: float) -> bool:
    """Whether a GET of ``url`` gives status 200 within ``deadline`` seconds."""
    try:
        return bool(httpx2.get(url, timeout=deadline, trust_env=False).status_code == 200)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        return False


def last_error_line(log: Path, most: int = 300) -> str:
    """The last line of a log that looks like an error, else the last line."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    errors = [line for line in lines if "Error" in line and "frame" not in line]
    return (errors or lines or ["no output"])[-1][-most:]


def main(line: Sequence[str]) -> None:
    """Replace this process with a server."""
    end = list(line).index("--") if "--" in line else len(line)
    parser = argparse.ArgumentParser(prog="python -m gagpo.agents.engines.remote.server", description=__doc__)
    parser.add_argument("model", help="a model folder or hub name; only its config is read")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--max-length", type=int, help="most tokens of a prompt and its response")
    parser.add_argument("--transfer", choices=("files", "nccl"), default="files", help="as the trainer's option")
    parser.add_argument("--lora-rank", type=int, help="rank of the adapter that the trainer will send")
    parser.add_argument("--devices", type=int, nargs="*", default=[], help="numbers of the GPUs; none for a CPU")
    options = parser.parse_args(line[:end])
    plan = ServerPlan(
        folder=options.model,
        dtype=options.dtype,
        max_length=options.max_length,
        devices=tuple(options.devices),
        threads=max(1, os.cpu_count() or 1),
        backend=BACKENDS[options.transfer],
        max_lora_rank=None if options.lora_rank is None else _rank_limit(parser, options.lora_rank),
        more=tuple(line[end + 1 :]),
    )
    server = command("-m", "vllm.entrypoints.openai.api_server", "--host", options.host)
    os.execve(server[0], [*server, "--port", str(options.port), *arguments(plan)], environment(plan))


def _rank_limit(parser: argparse.ArgumentParser, rank: int) -> int:
    """vLLM's limit for an adapter of ``rank``."""
    limit = max_rank(rank) if rank >= 1 else None
    if limit is None:
        parser.error(f"--lora-rank must be between 1 and {RANKS[-1]} (got {rank})")
    return limit


if __name__ == "__main__":
    main(sys.argv[1:])
