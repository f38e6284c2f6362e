"""The engine ``vllm-server``: sampling by vLLM servers that exist or are started by it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
from gagpo.agents.engines.parity import LogprobGap, ParityCheck, PolicyReader
from gagpo.agents.engines.ranks import Rank, require_one_gpu, share_of
from gagpo.agents.engines.remote.client import Order, Terms
from gagpo.agents.engines.remote.replicas import Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.server import Server, ServerPlan, StartedLate, StartedServers, is_up, plan_servers
from gagpo.agents.engines.remote.transfer import AdapterTransfer, FileTransfer, Round, adapter_name
from gagpo.agents.engines.vllm_arguments import temperature_of
from gagpo.agents.engines.weights import AdapterShape, SentBytes, adapter_tensors, base_weights, named_tensors
from gagpo.agents.model import ModelError
from gagpo.agents.precision import dtype_of, name_of
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

PARITY_TEMPERATURE = 0.8  # not 1, to detect a server that reports log-probabilities without temperature
RESTARTS = 10  # of own servers in an hour

# Sleep level 1 keeps the weights in the host's memory, level 2 drops them.
SLEEP_KEEPING: Order = ("/sleep?level=1", None)
SLEEP: Order = ("/sleep?level=2", None)
WAKE_WEIGHTS: Order = ("/wake_up?tags=weights", None)
WAKE_CACHE: Order = ("/wake_up?tags=kv_cache", None)


class VLLMServerEngine(ModelEngine):
    """Samples at vLLM servers, which hold copies of ``model`` that :meth:`load_weights` updates.

    Weights, prompt, sampling and seed determine a response up to rounding, whichever server gives it.

    If ``model`` has a LoRA adapter and is not sharded, servers get the weights below it once and the adapter with each
    update. Servers that do not support the adapter get all weights with the adapter merged.

    max_length, dtype: as of the engine ``vllm``.
    memory: share of the memory of each server's GPUs.
    urls: existing servers; several trainer ranks share them.
    replicas: number of servers that each rank starts on its own machine instead; 1 if None.
    placement: ``separate`` servers have their own devices and run during the update; a ``colocated`` one shares the
        rank's device and frees it in :meth:`sleep`.
    gpus, gpus_each: numbers of the GPUs for separate servers, and GPUs per server.
    folder: where weights pass through as files; servers on other machines must see it under the same name.
    logs: folder for the logs of own servers.
    deadline: seconds for one response.
    silence: seconds without a healthy answer after which a server is given up.
    start_deadline: seconds for a server to start.
    sync_deadline: seconds for each step of an update.
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
        placement: Literal["separate", "colocated"] = "separate",
        gpus: Sequence[int] = (),
        gpus_each: int = 1,
        folder: str | None = None,
        logs: str | None = None,
        deadline: float = 600.0,
        silence: float = 30.0,
        start_deadline: float = 900.0,
        sync_deadline: float = 600.0,
        start_with: Callable[[ServerPlan, Path], Server] = Server,
        place: Rank | None = None,
        read: PolicyReader | None = None,
    ):
        super().__init__(model, tokenizer, max_length, dtype or name_of(next(model.parameters()).dtype))
        self.device = read.device if read else self.device
        place = place or Rank.of(os.environ)
        self.start_deadline, self.sync_deadline = start_deadline, sync_deadline
        waits = {"deadline": deadline, "silence": silence, "start_deadline": start_deadline}
        for name, seconds in (waits | {"sync_deadline": sync_deadline}).items():
            if not 0 < seconds < float("inf"):
                raise InvalidArgument(f"engine.options.{name} must be positive seconds, got {seconds}")
        require_one_gpu("vllm-server", {"placement": placement, "gpus": gpus, "gpus_each": gpus_each})
        if urls and replicas:
            raise InvalidArgument("engine.options: give urls of servers that exist, or how many replicas to start")
        self.placement = placement
        self._vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._parity = ParityCheck(model, self.dtype, self.max_length, PARITY_TEMPERATURE, read)
        self._run_name, self._updates = secrets.token_hex(4), 0
        self._gaps: dict[int, LogprobGap] = {}
        self._asleep = False  # from sleep until the servers' caches are allocated again
        self._sync_seconds, self._sent = 0.0, SentBytes()
        self._temporary = tempfile.TemporaryDirectory(prefix="gagpo-weights-")
        self._config_folder = tempfile.TemporaryDirectory(prefix="gagpo-config-")
        config_of(model).save_pretrained(self._config_folder.name)
        self._own = StartedServers(RESTARTS, start_deadline)
        self._closing = [self._temporary.cleanup, self._config_folder.cleanup, self._own.close]
        self._close = weakref.finalize(self, _close_all, self._closing)
        self._passing = Path(folder or self._temporary.name)
        self._adapter = None if read else AdapterShape.of(model)
        try:
            if not urls:
                plan = ServerPlan(
                    folder=self._config_folder.name,
                    dtype=self.dtype,
                    max_length=self.max_length,
                    architecture=type(model).__name__,
                    memory=memory,
                    sleeps=placement == "colocated",
                    adapter_rank=self._adapter.rank if self._adapter else 0,
                )
                plans = plan_servers(plan, replicas, placement, gpus, gpus_each, self.device, place)
                self._start(plans, Path(logs or self._temporary.name), place, start_with)
            addresses = [server.url for server in self._own.all] or share_of(urls, place)
            recover = self._recover if self._own.all else None
            self._router = ReplicaRouter(addresses, deadline=deadline, silence=silence, recover=recover)
            self.counters: Mapping[str, int] = vars(self._router.counters)
            self._closing.append(self._router.close)
            self._load_first(read)
        except BaseException:
            self.close()
            raise

    def _start(
        self, plans: list[ServerPlan], logs: Path, place: Rank, start_with: Callable[[ServerPlan, Path], Server]
    ) -> None:
        """Start servers; if one with LoRA enabled fails, start all of them without."""
        files = [logs / f"server-{place.rank}-{number}.log" for number in range(len(plans))]
        try:
            self._own.start(list(map(start_with, plans, files)))
        except ModelError as error:
            if isinstance(error, StartedLate) or self._adapter is None:
                raise
            self._merge_instead(error)
            plans = [replace(one, adapter_rank=0) for one in plans]
            self._own.start(list(map(start_with, plans, files)))

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

    @property
    def takes_adapter(self) -> bool:  # type: ignore[override]
        """Whether the adapter is sent alone."""
        return self._adapter is not None

    def _new_transfer(self) -> FileTransfer | AdapterTransfer:
        below = FileTransfer(self.model, self.dtype, self._passing)
        made: FileTransfer | AdapterTransfer = below
        if self._adapter is not None:
            size = dtype_of(self.dtype).itemsize
            made = AdapterTransfer(
                self._adapter, below, lambda: self._sent.counted(base_weights(self.model), size), self._passing
            )
        self._closing.append(made.close)
        return made

    def _merge_instead(self, error: Exception) -> None:
        self._adapter = None
        LOG.warning("servers do not support this adapter, so all weights are sent: %s", ascii_only(str(error))[:300])

    def _load_first(self, read: PolicyReader | None) -> None:
        """Send the first weights, merged if servers do not support the adapter."""
        self._transfer = self._new_transfer()
        if self._adapter is not None:
            try:
                self.load_weights(adapter_tensors(self.model))
                return
            except (ReplicasLost, ModelError) as error:
                self._merge_instead(error)
            self._transfer.close()
            self._transfer = self._new_transfer()
        self.load_weights(read.tensors(self.dtype) if read else named_tensors(self.model))

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Send weights to every server, including those that were given up, and check each copy before it is used.

        The tensors are read once, in this thread. A server that fails is left out.

        Raises: ModelError if a server does not give the model's log-probabilities.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        version = f"{self._run_name}:{self._updates}"
        adapter = adapter_name(version) if self.takes_adapter else None
        self._router.terms = Terms(tuple(self.stops), self._vocabulary, version, adapter)
        for number, server in enumerate(self._own.all):  # restart those that ended or are still silent
            lost = self._updates > 1 and not self._router.all[number].alive
            if not server.running or (lost and not is_up(f"{server.url}/health", self._router.silence)):
                self._restart(number)
        self._sent.total = 0
        passing = self._parity.against(tensors, adapter=self.takes_adapter)
        item = None if self.takes_adapter else dtype_of(self.dtype).itemsize
        copies = self._updated(self._router.all, self._sent.counted(passing, item))
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

    def _updated(
        self, replicas: Sequence[Replica], tensors: Iterable[NamedTensor] | None
    ) -> list[tuple[Replica, list[Response]]]:
        """Send weights to servers and ask them the parity check's questions; returns those that did both.

        The others are taken out of use. tensors: None sends the last ones again.
        """
        assert self._router.terms is not None
        in_use = {replica.number for replica in replicas if replica.alive}
        for replica in replicas:
            self._router.take_out(replica, "it is taking new weights")
        clients = [replica.client for replica in replicas]
        run, version = self._router.run, self._router.terms.version
        faults = self._transfer.send(tensors, version, clients, run, self.sync_deadline)
        if self._asleep:  # wake allocated the weights only, because loading needs memory
            release_memory(self.device)
            cache = Round(clients, run, self.sync_deadline, faults)
            cache.order(*WAKE_CACHE)
            faults = cache.faults
        outcomes = self._router.ask_all(replicas, faults, self._parity.questions(), self._parity.sampling)
        found = []
        for replica, outcome in zip(replicas, outcomes, strict=True):
            if isinstance(outcome, list):
                found.append((replica, outcome))
            else:
                self._router.take_out(replica, str(outcome))
        lost = in_use - {replica.number for replica, _ in found}
        for replica in replicas:
            if replica.number in lost:
                self._router.report_loss(replica, len(found))
        return found

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
        for replica, _ in self._updated(self._router.all, None):
            self._router.run(self._router.admit(replica))
        if not any(replica.alive for replica in self._router.all):
            raise ReplicasLost(f"no vLLM server could be brought back: {self._router.last_errors()}")

    def sleep(self) -> None:
        """Free the device of a colocated server, weights included."""
        self._require_idle()
        if self.placement == "colocated":
            self._ready, self._asleep = False, True
            self._router.order(SLEEP_KEEPING if self.takes_adapter else SLEEP, self.sync_deadline)

    def wake(self) -> None:
        """Allocate memory for weights; :meth:`load_weights` fills it and allocates the cache."""
        if self.placement == "colocated":
            release_memory(self.device)
            self._router.order(WAKE_WEIGHTS, self.sync_deadline)

    def measures(self) -> dict[str, float]:
        """Metrics: gaps, seconds and bytes of the last update, servers in use, and :class:`ServerCounters`."""
        found = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.all)),
            "engine_seconds_sync": self._sync_seconds,
            "engine_bytes_sync": float(self._sent.total),
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
