"""The engine ``vllm-server``: sampling by vLLM servers, as many as there are, that exist or are started here."""

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
from operator import attrgetter
from pathlib import Path
from typing import Literal

import torch

from gagpo.agents.engines.base import (
    Finished,
    ModelEngine,
    NamedTensor,
    Request,
    Response,
    Sampling,
    Tokenizer,
    config_of,
    give_back,
)
from gagpo.agents.engines.parity import LogprobGap, ParityCheck, PolicyReader
from gagpo.agents.engines.remote.replicas import Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.seat import Seat, share_of, visible_gpu
from gagpo.agents.engines.remote.server import Server, ServerPlan, answers
from gagpo.agents.engines.remote.transfer import Round, make_transfer
from gagpo.agents.engines.remote.wire import ReplicaError, RequestRefused, Terms
from gagpo.agents.engines.vllm_arguments import temperature_of
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import ModelError
from gagpo.agents.precision import name_of
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.pool.restarts import RestartBudget
from gagpo.envs.tables import ascii_only

LOG = logging.getLogger("gagpo")

PARITY_TEMPERATURE = 0.8  # not 1, so that a server that reports log-probabilities before the temperature is found out
GPU_SHARE = {"colocated": 0.4, "separate": 0.9}


class VLLMServerEngine(ModelEngine):
    """Samples at vLLM servers, which hold copies of ``model`` that :meth:`load_weights` brings up to date.

    urls: servers that exist; of many trainer ranks each takes its share of them. replicas: how many servers each rank
    starts on its own machine instead. placement: ``separate`` servers have devices of their own (``gpus``, one each, or
    ``gpus_each``) and run on during the update; a ``colocated`` one shares the rank's device, and frees it in
    :meth:`sleep`. transfer: ``file``, ``nccl`` or ``ipc``, see :mod:`gagpo.agents.engines.remote.transfer`; the fastest
    that the devices allow if absent. folder: where weights pass through as files; servers on other machines must see it
    under the same name. logs: folder of the logs of servers started here.

    deadline: seconds for one response. silence: seconds after which a server that does not say that it is well is given
    up. start_deadline, sync_deadline: seconds for a server to start, and to take new weights. restarts: how often in an
    hour servers started here may be started again. seat: the place of this process among the trainer's, unless it is
    that of its variables. read: of a policy in parts, see :class:`gagpo.agents.engines.parity.ParityCheck`; ``model``
    then needs no numbers. start_with: what starts a server; a cluster has its own. max_length,
    dtype, memory: as of the engine ``vllm``; the memory is a share of each server's device.

    A response is a function of weights, prompt, sampling and seed, whatever server gives it, up to rounding.
    Raises :class:`ModelError` when a server cannot run the model or does not reproduce it, and
    :class:`ReplicasLost` when no server is left.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Tokenizer,
        max_length: int | None = None,
        *,
        dtype: str | None = None,
        memory: float | None = None,
        urls: Sequence[str] = (),
        replicas: int | None = None,
        placement: Literal["separate", "colocated"] = "separate",
        gpus: Sequence[int] = (),
        gpus_each: int = 1,
        transfer: str | None = None,
        folder: str | None = None,
        logs: str | None = None,
        deadline: float = 600.0,
        silence: float = 30.0,
        start_deadline: float = 900.0,
        sync_deadline: float = 600.0,
        restarts: int = 10,
        start_with: Callable[[ServerPlan, Path], Server] = Server,
        seat: Seat | None = None,
        read: PolicyReader | None = None,
    ):
        super().__init__(model, tokenizer, max_length, dtype or name_of(next(model.parameters()).dtype))
        self.device = read.device if read else self.device
        seat = seat or Seat.of(os.environ)
        self.start_deadline, self.sync_deadline = start_deadline, sync_deadline
        waits = {"deadline": deadline, "silence": silence, "start_deadline": start_deadline}
        for name, seconds in (waits | {"sync_deadline": sync_deadline}).items():
            if not 0 < seconds < float("inf"):
                raise InvalidArgument(f"engine.options.{name} must be positive seconds, got {seconds}")
        self.placement = placement
        on_gpu = self.device.type == "cuda"
        kind = transfer or ("file" if not on_gpu or urls else "ipc" if placement == "colocated" else "nccl")
        self._vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._parity = ParityCheck(model, self.dtype, self.max_length, PARITY_TEMPERATURE, read)
        self._run_name, self._updates = secrets.token_hex(4), 0
        self._gaps: dict[int, LogprobGap] = {}
        self._again: list[NamedTensor] | None = None
        self._asleep = False  # from sleep until servers have room for their cache again
        self._sync_seconds = 0.0
        self._restarts = RestartBudget(restarts)
        self._left_out: set[int] = set()  # servers of ours that wait for the next hour
        self._temporary = tempfile.TemporaryDirectory(prefix="gagpo-weights-")
        self._config_folder = tempfile.TemporaryDirectory(prefix="gagpo-vllm-")  # all that a server needs to know
        config_of(model).save_pretrained(self._config_folder.name)
        self._servers: list[Server] = []
        closing: list[Callable[[], None]] = [self._temporary.cleanup, self._config_folder.cleanup]
        self._close = weakref.finalize(self, _close_all, self._servers, closing)
        self._transfer = make_transfer(kind, model, self.dtype, self.device, Path(folder or self._temporary.name))
        try:
            if not urls:
                plans = self._plans(_count(replicas, placement), gpus, gpus_each, kind, memory, seat)
                place = Path(logs or self._temporary.name)
                self._servers += [
                    start_with(plan, place / f"server-{seat.rank}-{n}.log") for n, plan in enumerate(plans)
                ]
                for server in self._servers:
                    server.start()
                for server in self._servers:
                    server.wait(start_deadline)
            elif replicas:
                raise InvalidArgument("engine.options: give urls of servers that exist, or how many replicas to start")
            addresses = [server.url for server in self._servers] or share_of(urls, seat)
            recover = self._recover if self._servers else None
            self._router = ReplicaRouter(addresses, deadline=deadline, silence=silence, recover=recover)
            self.counters: Mapping[str, int] = vars(self._router.counters)  # what has happened so far
            closing += [self._router.close, self._transfer.close]
            self.load_weights(read.tensors(self.dtype) if read else named_tensors(model))
        except BaseException:
            self.close()
            raise

    def _plans(
        self, count: int, gpus: Sequence[int], each: int, kind: str, memory: float | None, seat: Seat
    ) -> list[ServerPlan]:
        """How each server is to be started; of the GPUs that are named every rank of this machine has its share."""
        devices: list[tuple[int, ...]] = [()] * count
        if self.device.type == "cuda" and self.placement == "colocated":
            devices = [(visible_gpu(self.device.index or 0),)]
        elif self.device.type == "cuda" or gpus:
            ranks = f" at each of {seat.local_world} ranks" if seat.local_world > 1 else ""
            if len(gpus) != count * each * seat.local_world:
                raise InvalidArgument(
                    f"engine.options.gpus must name {count * each * seat.local_world} GPUs for {count} replicas of "
                    f"{each}{ranks}, got {len(gpus)}"
                )
            own = gpus[count * each * seat.local :]
            devices = [tuple(own[each * n : each * (n + 1)]) for n in range(count)]
        return [
            ServerPlan(
                folder=self._config_folder.name,
                dtype=self.dtype,
                max_length=self.max_length,
                architecture=type(self.model).__name__,
                transfer=kind,
                memory=memory or GPU_SHARE[self.placement],
                devices=own,
                sleeps=self.placement == "colocated",
                threads=max(1, (os.cpu_count() or 1) // count),
            )
            for own in devices
        ]

    # Sampling ---------------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Send requests to the servers of their sessions; a new session goes to the server that has read most
        of its prompt, unless that has many more sessions than another."""
        if not requests:
            return
        self._require_room(requests, sampling)
        for request in requests:
            temperature_of(request, sampling)
        self._parity.remember(requests)
        self._router.submit(requests, sampling)

    def collect(self, timeout: float | None = None) -> list[Finished]:
        """The responses that have come, waiting for the first for at most ``timeout`` seconds.

        Raises :class:`ReplicasLost` when no server is left to ask, and what a server says of a request it refuses.
        """
        return self._router.collect(timeout)

    def release(self, session: int) -> None:
        """Forget where the session is, and drop what it has under way."""
        self._router.release(session)

    # Weights ----------------------------------------------------------------------------------------------------------

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Bring weights to every server, those that were given up included, and prove each copy before it is used.

        They are read once, in this thread, and not kept unless they are a list. A server that does not take them is
        left out; :class:`ModelError` for one that takes them and is not the model.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        self._again = tensors if isinstance(tensors, list) else None
        self._router.terms = Terms(tuple(self.stops), self._vocabulary, f"{self._run_name}:{self._updates}")
        for number, server in enumerate(self._servers):  # ours that ended, and those given up that are silent still
            lost = self._updates > 1 and not self._router.all[number].alive
            if not server.running or (lost and not answers(f"{server.url}/health", self._router.silence)):
                self._restart(number)
        copies = self._updated(self._router.all, self._parity.against(tensors))
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
        """Send weights to servers and ask them the parity check's questions; those that did both, with their answers.

        All others are out of use. What frees its device has woken for the weights alone, and for its cache after them.
        """
        assert self._router.terms is not None
        in_use = {replica.number for replica in replicas if replica.alive}
        for replica in replicas:
            self._withdraw(replica, "it is taking new weights")
        clients = [replica.client for replica in replicas]
        run, version = self._router.run, self._router.terms.version
        faults = self._transfer.send(tensors, version, clients, run, self.sync_deadline)
        if self._asleep:
            give_back(self.device)
            cache = Round(clients, run, self.sync_deadline, faults)
            cache.order("/wake_up?tags=kv_cache", None)
            faults = cache.faults
        outcomes = self._router.run(self._ask_all(replicas, faults))
        found = []
        for replica, outcome in zip(replicas, outcomes, strict=True):  # what it answered, or why it is out of use
            if isinstance(outcome, list):
                found.append((replica, outcome))
            else:
                self._withdraw(replica, str(outcome))
        lost = in_use - {replica.number for replica, _ in found}
        for replica in replicas:
            if replica.number in lost:
                self._router.report_loss(replica, len(found))
        return found

    async def _ask_all(
        self, replicas: Sequence[Replica], faults: Sequence[ReplicaError | None]
    ) -> list[list[Response] | Exception]:
        """The answers of the servers that took the weights, and what was wrong with the others."""
        return await asyncio.gather(*map(self._ask, replicas, faults))

    async def _ask(self, replica: Replica, fault: ReplicaError | None) -> list[Response] | Exception:
        assert self._router.terms is not None
        if fault is not None:
            return fault
        calls = [
            replica.client.generate(question, self._parity.sampling, self._router.terms)
            for question in self._parity.questions()
        ]
        try:
            return await asyncio.gather(*calls)
        except (ReplicaError, RequestRefused) as error:
            return error

    def _withdraw(self, replica: Replica, reason: str) -> None:
        self._router.run(self._router.withdraw(replica, reason))

    def _restart(self, number: int) -> None:
        """Start a server of ours again; it stays out of use where that fails or has been done too often."""
        if not self._restarts.take():
            if number not in self._left_out:
                LOG.warning("a vLLM server stays lost: the restarts of this hour (%d) are used up", self._restarts.most)
            self._left_out.add(number)
            return
        self._left_out.discard(number)
        server = self._servers[number]
        try:
            server.start()
            server.wait(self.start_deadline)
        except ModelError as error:
            LOG.warning("a vLLM server could not be started again: %s", ascii_only(str(error)))
            return
        self._router.run(self._router.move(self._router.all[number], server.url))
        LOG.warning("started a vLLM server again, now %s", server.url)

    async def _recover(self) -> None:
        """Bring back the servers of ours when none is left in the middle of a rollout, with the weights of the last
        update. These have been proved once, and the model may train on meanwhile, so it is not asked again."""
        await asyncio.get_running_loop().run_in_executor(None, self._restart_all)

    def _restart_all(self) -> None:
        for number in range(len(self._servers)):
            self._restart(number)
        for replica, _ in self._updated(self._router.all, self._last_weights()):
            self._router.run(self._router.admit(replica))
        if not any(replica.alive for replica in self._router.all):
            raise ReplicasLost(f"no vLLM server could be brought back: {self._router.last_errors()}")

    def _last_weights(self) -> Iterable[NamedTensor] | None:
        """Those of the last update where they have to be had and are at hand: laid out, or the model's own."""
        if self._transfer.keeps:
            return None
        if self._again is None and any(parameter.requires_grad for parameter in self.model.parameters()):
            return named_tensors(self.model)
        return self._again

    # Memory -----------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Free the device of colocated servers, weights included; separate ones have devices of their own."""
        self._require_idle()
        if self.placement == "colocated":
            self._ready, self._asleep = False, True
            self._order("/sleep?level=2")

    def wake(self) -> None:
        """Take the device again, for weights; they come by :meth:`load_weights`, and the room of a cache after them."""
        if self.placement == "colocated":
            give_back(self.device)
            self._order("/wake_up?tags=weights")

    def _order(self, path: str) -> None:
        for replica in filter(attrgetter("alive"), self._router.all):  # one that does not obey is given up
            try:
                self._router.run(replica.client.order(path, None, self.sync_deadline))
            except (ReplicaError, RequestRefused) as error:
                self._withdraw(replica, str(error))
                self._router.report_loss(replica, sum(one.alive for one in self._router.all))

    def measures(self) -> dict[str, float]:
        """For the metrics of an iteration: each server's gap to the trainer at the last update (the largest difference
        of a log-probability over real tokens, and the KL), servers in use, and what has happened to them so far."""
        found = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.all)),
            "engine_seconds_sync": self._sync_seconds,
        }
        found |= {f"engine_gap_{number}": gap.error for number, gap in sorted(self._gaps.items())}
        return found | {f"engine_{name}": float(count) for name, count in self.counters.items()}

    def close(self) -> None:
        """End the servers that were started here, and remove weights that are on disk."""
        self._close()

    @property
    def under_way(self) -> int:
        return self._router.under_way


def _close_all(servers: list[Server], closing: list[Callable[[], None]]) -> None:
    """Close what an engine opened, last things first."""
    for close in reversed(closing):
        with contextlib.suppress(Exception):
            close()
    for server in servers:
        server.close()


def _count(replicas: int | None, placement: str) -> int:
    if placement not in GPU_SHARE:
        raise InvalidArgument(f"engine.options.placement is {' or '.join(sorted(GPU_SHARE))}, got {placement!r}")
    count = 1 if replicas is None else replicas
    if count < 1 or (placement == "colocated" and count != 1):
        raise InvalidArgument(f"engine.options.replicas: at least 1, and 1 when colocated, got {count}")
    return count
