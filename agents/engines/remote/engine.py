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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.agents.engines.base import Finished, ModelEngine, Request, Response, Sampling, release_memory
from gagpo.agents.engines.options import EngineInputs
from gagpo.agents.engines.parity import LogprobGap, ParityCheck
from gagpo.agents.engines.remote.client import ReplicaError, ServedModel, temperature_of
from gagpo.agents.engines.remote.placement import servers_of
from gagpo.agents.engines.remote.replicas import Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.server import Server, ServerPlan, StartedServers, plan_servers
from gagpo.agents.engines.remote.transfer import FileTransfer
from gagpo.base.errors import InvalidArgument
from gagpo.base.rank import Rank
from gagpo.model.dtypes import name_of
from gagpo.model.shape import config_of
from gagpo.model.weights import NamedTensor, named_tensors

if TYPE_CHECKING:
    from gagpo.agents.engines.remote.options import VLLMOptions

RESTARTS = 10  # in an hour, of servers that the engine started

SLEEP = "/sleep?level=2"  # drops the weights
WAKE_WEIGHTS = "/wake_up?tags=weights"
WAKE_CACHE = "/wake_up?tags=kv_cache"


class VLLMServerEngine(ModelEngine):
    """Samples at vLLM servers, which hold copies of ``model`` that :meth:`load_weights` updates.

    Weights, prompt, sampling and seed determine a response up to rounding, whichever server gives it.

    inputs: the model and how to sample from it.
    options: which servers; several trainer ranks share existing ones.
    start_server: makes a server that the engine starts.
    rank: of this process, by default from torchrun's variables.

    Raises: InvalidArgument if options and ranks do not fit together.
    """

    def __init__(
        self,
        inputs: EngineInputs,
        options: VLLMOptions,
        *,
        start_server: Callable[[ServerPlan, Path], Server] = Server,
        rank: Rank | None = None,
    ):
        dtype = inputs.dtype or name_of(next(inputs.model.parameters()).dtype)
        super().__init__(inputs.model, inputs.tokenizer, inputs.max_length or options.max_length, dtype)
        self.options = options
        self.rank = rank or Rank.of(os.environ)
        self._reader = inputs.reader
        if self._reader is not None:
            self.device = self._reader.device  # the model itself may be on the device meta
        self.placement = options.placement or "separate"
        if options.is_colocated(self.device.type):
            self.placement = "colocated"
        self._vocab_size = len(self.model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._urls: list[str] = []
        self._plans: list[ServerPlan] = []
        if options.urls:
            self._urls = servers_of(options.urls, self.rank)
        else:
            self._plans = self._planned(inputs.memory)
        self._start_server = start_server
        self._parity = ParityCheck(self.model, self.dtype, self.max_length, self._reader)
        self._run_id = secrets.token_hex(4)  # tells our weights from those that an earlier trainer sent to a server
        self._updates = 0
        self._gaps: dict[int, LogprobGap] = {}
        self._caches_freed = False  # from sleep until the servers' caches are allocated again
        self._sync_seconds = 0.0
        self._servers = StartedServers(RESTARTS, options.start_timeout)
        self._started: ReplicaRouter | None = None
        self._closing: list[Callable[[], None]] = []  # what start opened, in order
        self._close = weakref.finalize(self, _close_all, self._closing)  # also at the end of the process

    def _planned(self, memory: float | None) -> list[ServerPlan]:
        """The servers to start; ``folder`` is set when they are."""
        plan = ServerPlan(
            folder="",
            dtype=self.dtype,
            max_length=self.max_length,
            architecture=type(self.model).__name__,
            memory=memory,
            sleeps=self.placement == "colocated",
        )
        return plan_servers(plan, self.options, self.placement, self.device, self.rank)

    def start(self) -> None:
        """Start the servers, or connect to those that exist, and send them the weights of the model.

        With several ranks all must call it together, because they gather the weights. A second call does nothing.

        Raises: ModelError if a server cannot run the model or does not reproduce it; ReplicasLost if no server is left.
        """
        if self._started is not None:
            return
        options = self.options
        try:
            temporary = tempfile.TemporaryDirectory(prefix="gagpo-weights-")
            self._closing += [temporary.cleanup, self._servers.close]
            self._transfer = FileTransfer(self.model, self.dtype, Path(options.folder or temporary.name))
            self._closing.append(self._transfer.close)
            if self._plans:
                self._start_servers(Path(temporary.name) / "config", Path(options.logs or temporary.name))
            router = ReplicaRouter(
                self._urls,
                deadline=options.timeout,
                health_timeout=options.health_timeout,
                recover=self._recover if self._plans else None,
            )
            self._closing.append(router.close)
            router.start()
            self._started = router
            self.load_weights(self._reader.tensors(self.dtype) if self._reader else named_tensors(self.model))
        except BaseException:
            self.close()
            raise

    def _start_servers(self, config_folder: Path, logs: Path) -> None:
        """Start all planned servers at once and wait until they are ready; a start takes minutes."""
        config_of(self.model).save_pretrained(str(config_folder))
        servers = []
        for number, plan in enumerate(self._plans):
            log = logs / f"server-{self.rank.rank}-{number}.log"
            servers.append(self._start_server(replace(plan, folder=str(config_folder)), log))
        self._servers.start(servers)
        self._urls = [server.url for server in servers]

    @property
    def _router(self) -> ReplicaRouter:
        if self._started is None:
            raise InvalidArgument("the vLLM engine has no servers yet: call its method start() first")
        return self._started

    @property
    def counters(self) -> Mapping[str, int]:
        """The events of :class:`ServerCounters`, by name."""
        return vars(self._router.counters)

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
        return 0 if self._started is None else self._started.under_way

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Send weights to every server, including those that were given up, and check each copy before it is used.

        The tensors are read once, in this thread. A server that fails is left out.

        Raises: ModelError if a server does not give the model's log-probabilities.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        version = f"{self._run_id}:{self._updates}"
        self._router.model = ServedModel(tuple(self.stops), self._vocab_size, version)
        self._restart_lost()
        updated = self._update_all(self._parity.against(tensors))
        self._caches_freed = False
        if not updated:
            raise ReplicasLost(f"no vLLM server took the weights: {self._router.last_errors()}")
        gaps = self._parity.gaps(self._parity.prompts(), [responses for _, responses in updated])
        self._gaps = {replica.number: gap for (replica, _), gap in zip(updated, gaps, strict=True)}
        for (replica, _), gap in zip(updated, gaps, strict=True):
            self._parity.judge(gap, f"the vLLM server {replica.client.url}")
        for replica, _ in updated:
            self._router.run(self._router.admit(replica))
        self._ready = True
        self._sync_seconds = time.perf_counter() - begun

    def _restart_lost(self) -> None:
        """Restart servers that ended, and those that were given up and still do not answer."""
        for number, server in enumerate(self._servers.all):
            given_up = self._updates > 1 and not self._router.all[number].alive
            if not server.running or (given_up and not self._router.is_healthy(number)):
                self._restart(number)

    def _update_all(self, tensors: Iterable[NamedTensor] | None) -> list[tuple[Replica, list[Response]]]:
        """Update all servers; returns those that answered the prompts of the parity check, with their responses.

        The others are out of use.

        tensors: None sends the last ones again.
        """
        replicas = self._router.all
        in_use = [replica.alive for replica in replicas]
        if tensors is not None:
            self._transfer.write(tensors, self._router.model.version)
        release_memory(self.device)  # a server on the same GPU needs it to load the weights

        async def update_together() -> list[list[Response]]:
            return await asyncio.gather(*map(self._update, replicas))

        # This thread waits here. The servers read the files at the same time, each in its own processes.
        answers = self._router.run(update_together())
        updated = [(replica, answer) for replica, answer in zip(replicas, answers, strict=True) if answer]
        for replica, was_used, answer in zip(replicas, in_use, answers, strict=True):
            if was_used and not answer:
                self._router.report_loss(replica, len(updated))
        return updated

    async def _update(self, replica: Replica) -> list[Response]:
        """Send the last weights to a server and ask it the prompts of the parity check; returns [] if it fails."""
        client, router = replica.client, self._router
        await router.withdraw(replica, "it is taking new weights")
        try:
            await self._transfer.send(client, router.model.version, router.deadline)
            if self._caches_freed:  # wake allocated memory for the weights only, because loading needs some
                await client.post(WAKE_CACHE, None, router.deadline)
            prompts = self._parity.prompts()
            calls = [client.generate(prompt, self._parity.sampling, router.model) for prompt in prompts]
            return await asyncio.gather(*calls)
        except ReplicaError as error:
            await router.withdraw(replica, str(error))
            return []

    def _restart(self, number: int) -> None:
        if self._servers.restart(number):
            self._router.run(self._router.move(self._router.all[number], self._servers.all[number].url))

    async def _recover(self) -> None:
        """Restart all servers with the weights of the last update, when none is left during a rollout.

        It runs in the router's loop. Restarting waits for that loop, so it takes place in another thread. The weights
        are not checked again, since the model may have changed.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._restart_all)

    def _restart_all(self) -> None:
        for number in range(len(self._servers.all)):
            self._restart(number)
        for replica, _ in self._update_all(None):
            self._router.run(self._router.admit(replica))
        if not any(replica.alive for replica in self._router.all):
            raise ReplicasLost(f"no vLLM server could be brought back: {self._router.last_errors()}")

    def sleep(self) -> None:
        """Free the device of a colocated server, weights included."""
        self._require_idle()
        if self.placement == "colocated":
            self._ready = False
            self._caches_freed = True
            self._router.post_to_all(SLEEP)

    def wake(self) -> None:
        """Allocate memory for weights; :meth:`load_weights` fills it and allocates the cache."""
        if self.placement == "colocated":
            release_memory(self.device)
            self._router.post_to_all(WAKE_WEIGHTS)

    def measures(self) -> dict[str, float]:
        """Metrics: gaps, seconds and bytes of the last update, servers in use, and :class:`ServerCounters`."""
        measures = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.all)),
            "engine_seconds_sync": self._sync_seconds,
            "engine_bytes_sync": float(self._transfer.bytes),
        }
        measures |= {f"engine_gap_{number}": gap.error for number, gap in sorted(self._gaps.items())}
        return measures | {f"engine_{name}": float(count) for name, count in self.counters.items()}

    def close(self) -> None:
        """End the servers that it started, and remove weights from the disk; may be called twice."""
        self._close()


def _close_all(closing: list[Callable[[], None]]) -> None:
    """Close what an engine started, in reverse order."""
    for close in reversed(closing):
        with contextlib.suppress(Exception):
            close()
