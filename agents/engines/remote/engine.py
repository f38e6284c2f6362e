"""The engine ``vllm``: sampling by vLLM servers that exist or are started by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from gagpo.agents.engines.base import Finished, ModelEngine, Request, Response, Sampling, release_memory
from gagpo.agents.engines.parity import LogprobGap, ParityCheck, PolicyReader
from gagpo.agents.engines.ranks import Rank, is_colocated, require_one_gpu, share_of
from gagpo.agents.engines.remote.client import ReplicaError, Terms, temperature_of
from gagpo.agents.engines.remote.replicas import Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.server import Server, ServerPlan, StartedServers, plan_servers
from gagpo.agents.engines.remote.transfer import FileTransfer
from gagpo.base.errors import InvalidArgument
from gagpo.model.dtypes import name_of
from gagpo.model.shape import config_of
from gagpo.model.weights import NamedTensor, named_tensors

RESTARTS = 10  # of own servers in an hour

SLEEP = "/sleep?level=2"  # drops the weights
WAKE_WEIGHTS = "/wake_up?tags=weights"
WAKE_CACHE = "/wake_up?tags=kv_cache"


class VLLMServerEngine(ModelEngine):
    """Samples at vLLM servers, which hold copies of ``model`` that :meth:`load_weights` updates.

    Weights, prompt, sampling and seed determine a response up to rounding, whichever server gives it.

    max_length: most tokens of a prompt and its response; the model's limit if None.
    dtype: of the copies; the model's if None.
    memory: share of the memory of each server's GPUs.
    urls: existing servers; several trainer ranks share them.
    replicas: number of servers that each rank starts on its own machine instead; 1 if None.
    placement: ``separate`` servers have their own devices and run during the update; a ``colocated`` one shares the
        rank's device and frees it in :meth:`sleep`. By default ``colocated`` on a GPU if ``gpus`` names none.
    gpus, tensor_parallel_size: numbers of the GPUs for separate servers, and GPUs per server.
    folder: where weights pass through as files; servers on other machines must see it under the same name.
    logs: folder for the logs of own servers.
    timeout: seconds for one response, and for each step of an update.
    health_timeout: seconds without a healthy answer after which a server is given up.
    start_timeout: seconds for a server to start.
    start_with: starts a server.
    place: the rank of this process, by default from torchrun's variables.
    read: for a sharded policy, see :class:`gagpo.agents.engines.parity.ParityCheck`.

    Raises: ModelError if a server cannot run the model or does not reproduce it; ReplicasLost if no server is left.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        max_length: int | None = None,
        *,
        dtype: str | None = None,
        memory: float | None = None,
        urls: Sequence[str] = (),
        replicas: int | None = None,
        placement: Literal["separate", "colocated"] | None = None,
        gpus: Sequence[int] = (),
        tensor_parallel_size: int = 1,
        folder: str | None = None,
        logs: str | None = None,
        timeout: float = 600.0,
        health_timeout: float = 30.0,
        start_timeout: float = 900.0,
        start_with: Callable[[ServerPlan, Path], Server] = Server,
        place: Rank | None = None,
        read: PolicyReader | None = None,
    ):
        super().__init__(model, tokenizer, max_length, dtype or name_of(next(model.parameters()).dtype))
        self.device = read.device if read else self.device
        place = place or Rank.of(os.environ)
        waits = {"timeout": timeout, "health_timeout": health_timeout, "start_timeout": start_timeout}
        for name, seconds in waits.items():
            if not 0 < seconds < float("inf"):
                raise InvalidArgument(f"engine.options.{name} must be positive seconds, got {seconds}")
        options = {"placement": placement, "urls": urls, "gpus": gpus, "tensor_parallel_size": tensor_parallel_size}
        placement = placement or ("colocated" if is_colocated(options, self.device.type) else "separate")
        require_one_gpu(options | {"placement": placement})
        if urls and replicas:
            raise InvalidArgument("engine.options: give urls of servers that exist, or how many replicas to start")
        self.placement = placement
        self._vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._parity = ParityCheck(model, self.dtype, self.max_length, read)
        self._run_name, self._updates = secrets.token_hex(4), 0
        self._gaps: dict[int, LogprobGap] = {}
        self._asleep = False  # from sleep until the servers' caches are allocated again
        self._sync_seconds = 0.0
        self._temporary = tempfile.TemporaryDirectory(prefix="gagpo-weights-")
        config_folder = Path(self._temporary.name) / "config"
        config_of(model).save_pretrained(str(config_folder))
        self._own = StartedServers(RESTARTS, start_timeout)
        self._closing = [self._temporary.cleanup, self._own.close]
        self._close = weakref.finalize(self, _close_all, self._closing)
        try:
            self._transfer = FileTransfer(model, self.dtype, Path(folder or self._temporary.name))
            self._closing.append(self._transfer.close)
            if not urls:
                plan = ServerPlan(
                    folder=str(config_folder),
                    dtype=self.dtype,
                    max_length=self.max_length,
                    architecture=type(model).__name__,
                    memory=memory,
                    sleeps=placement == "colocated",
                )
                plans = plan_servers(plan, replicas, placement, gpus, tensor_parallel_size, self.device, place)
                folder_of_logs = Path(logs or self._temporary.name)
                files = (folder_of_logs / f"server-{place.rank}-{number}.log" for number in range(len(plans)))
                self._own.start(map(start_with, plans, files))
            addresses = [server.url for server in self._own.all] or share_of(urls, place)
            recover = self._recover if self._own.all else None
            self._router = ReplicaRouter(addresses, deadline=timeout, health_timeout=health_timeout, recover=recover)
            self.counters: Mapping[str, int] = vars(self._router.counters)
            self._closing.append(self._router.close)
            self.load_weights(read.tensors(self.dtype) if read else named_tensors(model))
        except BaseException:
            self.close()
            raise

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Send requests to the servers of their sessions."""
        if not requests:
            return
        self._require_room(requests, sampling)
        for request in requests:
            temperature_of(request, sampling)
        self._parity.remember(requests)
        self._router.submit(requests, sampling)

    def collect(self, timeout: float | None = None) -> list[Finished]:
        """Wait for the first finished response, at most ``timeout`` seconds.

        Raises: ReplicasLost if no server is left; RequestRefused if servers reject a request.
        """
        return self._router.collect(timeout)

    def release(self, session: int) -> None:
        """Forget the session's server, and drop its request under way."""
        self._router.release(session)

    @property
    def under_way(self) -> int:
        return self._router.under_way

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Send weights to every server, including those that were given up, and check each copy before it is used.

        The tensors are read once, in this thread. A server that fails is left out.

        Raises: ModelError if a server does not give the model's log-probabilities.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        version = f"{self._run_name}:{self._updates}"
        self._router.terms = self._terms = Terms(tuple(self.stops), self._vocabulary, version)
        for number, server in enumerate(self._own.all):  # restart those that ended or are still silent
            lost = self._updates > 1 and not self._router.all[number].alive
            if not server.running or (lost and not self._router.is_healthy(number)):
                self._restart(number)
        copies = self._updated(self._parity.against(tensors))
        self._asleep = False
        if not copies:
            raise ReplicasLost(f"no vLLM server took the weights: {self._router.last_errors()}")
        gaps = self._parity.gaps(self._parity.questions(), [responses for _, responses in copies])
        self._gaps = {replica.number: gap for (replica, _), gap in zip(copies, gaps, strict=True)}
        for (replica, _), gap in zip(copies, gaps, strict=True):
            self._parity.judge(gap, f"the vLLM server {replica.client.url}")
        for replica, _ in copies:
            self._router.run(self._router.admit(replica))
        self._ready = True
        self._sync_seconds = time.perf_counter() - begun

    def _updated(self, tensors: Iterable[NamedTensor] | None) -> list[tuple[Replica, list[Response]]]:
        """Update all servers; returns those that answered the parity check's questions. The others are out of use.

        tensors: None sends the last ones again.
        """
        replicas = self._router.all
        in_use = [replica.alive for replica in replicas]
        if tensors is not None:
            self._transfer.write(tensors, self._terms.version)
        release_memory(self.device)

        async def at_once() -> list[list[Response]]:
            return await asyncio.gather(*map(self._update, replicas))

        answers = self._router.run(at_once())
        found = [(replica, answer) for replica, answer in zip(replicas, answers, strict=True) if answer]
        for replica, used, answer in zip(replicas, in_use, answers, strict=True):
            if used and not answer:
                self._router.report_loss(replica, len(found))
        return found

    async def _update(self, replica: Replica) -> list[Response]:
        """Send the last weights to a server and ask it the parity check's questions; returns [] if it fails."""
        client, deadline, sampling = replica.client, self._router.deadline, self._parity.sampling
        await self._router.withdraw(replica, "it is taking new weights")
        try:
            await self._transfer.send(client, self._terms.version, deadline)
            if self._asleep:  # wake allocated memory for the weights only, because loading needs some
                await client.order(WAKE_CACHE, None, deadline)
            calls = [client.generate(one, sampling, self._terms) for one in self._parity.questions()]
            return await asyncio.gather(*calls)
        except ReplicaError as error:
            await self._router.withdraw(replica, str(error))
            return []

    def _restart(self, number: int) -> None:
        if self._own.restart(number):
            self._router.run(self._router.move(self._router.all[number], self._own.all[number].url))

    async def _recover(self) -> None:
        """Restart all own servers with the weights of the last update, when none is left during a rollout.

        The weights are not checked again, since the model may have changed.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._restart_all)

    def _restart_all(self) -> None:
        for number in range(len(self._own.all)):
            self._restart(number)
        for replica, _ in self._updated(None):
            self._router.run(self._router.admit(replica))
        if not any(replica.alive for replica in self._router.all):
            raise ReplicasLost(f"no vLLM server could be brought back: {self._router.last_errors()}")

    def sleep(self) -> None:
        """Free the device of a colocated server, weights included."""
        self._require_idle()
        if self.placement == "colocated":
            self._ready, self._asleep = False, True
            self._router.order(SLEEP)

    def wake(self) -> None:
        """Allocate memory for weights; :meth:`load_weights` fills it and allocates the cache."""
        if self.placement == "colocated":
            release_memory(self.device)
            self._router.order(WAKE_WEIGHTS)

    def measures(self) -> dict[str, float]:
        """Metrics: gaps, seconds and bytes of the last update, servers in use, and :class:`ServerCounters`."""
        found = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.all)),
            "engine_seconds_sync": self._sync_seconds,
            "engine_bytes_sync": float(self._transfer.bytes),
        }
        found |= {f"engine_gap_{number}": gap.error for number, gap in sorted(self._gaps.items())}
        return found | {f"engine_{name}": float(count) for name, count in self.counters.items()}

    def close(self) -> None:
        """End own servers, and remove weights from the disk."""
        self._close()


def _close_all(closing: list[Callable[[], None]]) -> None:
    """Close what an engine opened, in reverse order."""
    for close in reversed(closing):
        with contextlib.suppress(Exception):
            close()
