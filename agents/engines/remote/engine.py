"""The engines ``vllm-server`` and ``sglang-server``: sampling by servers that exist or are started here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import torch

from gagpo.agents.engines.adapters import AdapterShape
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
from gagpo.agents.engines.remote.adapter_transfer import AdapterTransfer, adapter_name, sends_adapter
from gagpo.agents.engines.remote.kinds.base import ServerKind
from gagpo.agents.engines.remote.kinds.sglang import SGLangServers
from gagpo.agents.engines.remote.kinds.vllm import VLLMServers
from gagpo.agents.engines.remote.own import OwnServers
from gagpo.agents.engines.remote.replicas import Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.seat import Seat, require_one_card, share_of
from gagpo.agents.engines.remote.server import Server, ServerPlan, StartedLate, answers, planned
from gagpo.agents.engines.remote.transfer import Round, Transfer
from gagpo.agents.engines.remote.wire import Terms
from gagpo.agents.engines.weights import adapter_tensors, base_weights, named_tensors
from gagpo.agents.model import ModelError
from gagpo.agents.precision import dtype_of, name_of
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

PARITY_TEMPERATURE = 0.8  # not 1, so that a server that reports log-probabilities before the temperature is found out


class ServerEngine(ModelEngine):
    """Samples at servers, which hold copies of ``model`` that :meth:`load_weights` brings up to date.

    kind: of the servers; a subclass says which. urls: servers that exist; of many trainer ranks each takes its share of
    them. replicas: how many servers each rank starts on its own machine instead. placement: ``separate`` servers have
    devices of their own (``gpus``, one each, or ``gpus_each``) and run on during the update; a ``colocated`` one shares
    the rank's device, and frees it in :meth:`sleep`. transfer: one of the kind's ``transfers``, see
    :mod:`gagpo.agents.engines.remote.transfer`; the fastest that the devices allow if absent. folder: where weights
    pass through as files; servers on other machines must see it under the same name. logs: folder of the logs of
    servers started here.

    send: of a model with a LoRA adapter, ``adapter`` has the weights below it sent once and the adapter with each
    update, ``weights`` all weights with the adapter added to them; ``auto`` is ``adapter`` where ``model`` is whole in
    this process and the servers take it, which is tried out.

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

    kind: ClassVar[ServerKind]

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
        send: Literal["auto", "adapter", "weights"] = "auto",
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
        require_one_card(
            f"{self.kind.name.lower()}-server", {"placement": placement, "gpus": gpus, "gpus_each": gpus_each}
        )
        self.placement = placement
        on_gpu = self.device.type == "cuda"
        way = transfer or ("file" if not on_gpu or urls else "ipc" if placement == "colocated" else "nccl")
        if way not in self.kind.transfers:
            known = ", ".join(self.kind.transfers)
            raise InvalidArgument(f"engine.options.transfer is one of {known}, got {way!r}")
        self._vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._parity = ParityCheck(model, self.dtype, self.max_length, PARITY_TEMPERATURE, read)
        self._run_name, self._updates = secrets.token_hex(4), 0
        self._gaps: dict[int, LogprobGap] = {}
        self._again: list[NamedTensor] | None = None
        self._asleep = False  # from sleep until servers have room for their cache again
        self._sync_seconds, self._sent_bytes = 0.0, 0
        self._temporary = tempfile.TemporaryDirectory(prefix="gagpo-weights-")
        self._config_folder = tempfile.TemporaryDirectory(prefix="gagpo-config-")  # all that a server needs to know
        config_of(model).save_pretrained(self._config_folder.name)
        self._own = OwnServers(self.kind.name, restarts, start_deadline)
        self._closing = [self._temporary.cleanup, self._config_folder.cleanup, self._own.close]
        self._close = weakref.finalize(self, _close_all, self._closing)
        self._passing = Path(folder or self._temporary.name)
        adapter = read.adapter if read else AdapterShape.of(model)
        self.takes_adapter = sends_adapter(send, adapter, transfer, alone=read is None)
        try:
            if not urls:
                plan = ServerPlan(
                    folder=self._config_folder.name,
                    dtype=self.dtype,
                    max_length=self.max_length,
                    architecture=type(model).__name__,
                    transfer=way,
                    memory=memory,
                    sleeps=placement == "colocated",
                )
                if adapter is not None and self.takes_adapter:
                    plan = replace(plan, transfer="file", adapter_rank=adapter.rank)
                plans = self._planned(plan, replicas, gpus, gpus_each, seat)
                place = Path(logs or self._temporary.name)
                logged = [place / f"server-{seat.rank}-{number}.log" for number in range(len(plans))]
                try:
                    self._own.start(list(map(start_with, plans, logged)))
                except ModelError as error:
                    if isinstance(error, StartedLate) or not (self.takes_adapter and send == "auto"):
                        raise
                    self._say_merged(error)
                    plans = [replace(one, transfer=way, adapter_rank=0) for one in plans]
                    self._own.start(list(map(start_with, plans, logged)))
            elif replicas:
                raise InvalidArgument("engine.options: give urls of servers that exist, or how many replicas to start")
            addresses = [server.url for server in self._own.all] or share_of(urls, seat)
            recover = self._recover if self._own.all else None
            self._router = ReplicaRouter(addresses, self.kind, deadline=deadline, silence=silence, recover=recover)
            self.counters: Mapping[str, int] = vars(self._router.counters)  # what has happened so far
            self._closing.append(self._router.close)
            self._transfer = self._transfer_of(way, adapter, read)  # closed before the router, through which it ends
            self._load_first(send, read)
        except BaseException:
            self.close()
            raise

    def _planned(
        self, plan: ServerPlan, replicas: int | None, gpus: Sequence[int], each: int, seat: Seat
    ) -> list[ServerPlan]:
        if not self.kind.starts:
            raise InvalidArgument(
                f"engine.options.urls must name {self.kind.name} servers: this engine starts none itself. One is "
                f"started by {self.kind.starting}"
            )
        return planned(plan, replicas, self.placement, gpus, each, self.device, seat)

    # Sampling ---------------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Send requests to the servers of their sessions; a new session goes to the server that has read most
        of its prompt, unless that has many more sessions than another."""
        if not requests:
            return
        self._require_room(requests, sampling)
        for request in requests:
            self.kind.require_exact(request, sampling)
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

    def _transfer_of(self, way: str, adapter: AdapterShape | None, read: PolicyReader | None) -> Transfer:
        """What brings weights; what is below an adapter goes by file, since servers name adapted layers otherwise."""
        way = "file" if self.takes_adapter else way
        made = self.kind.make_transfer(way, self.model, self.dtype, self.device, self._passing)
        if adapter is not None and self.takes_adapter:

            def base() -> Iterator[NamedTensor]:
                below = read.base_tensors(self.dtype) if read else base_weights(self.model)
                return self._counted(below, dtype_of(self.dtype).itemsize)

            made = AdapterTransfer(adapter, made, base, self.kind, self._passing)
        self._closing.append(made.close)
        return made

    def _say_merged(self, error: Exception) -> None:
        self.takes_adapter = False
        LOG.warning("servers take no adapter, so all weights are sent: %s", ascii_only(str(error))[:300])

    def _load_first(self, send: str, read: PolicyReader | None) -> None:
        """Bring what was asked for; where that was left open and no server takes an adapter, all weights."""
        if self.takes_adapter:
            try:
                return self.load_weights(read.adapter_tensors() if read else adapter_tensors(self.model))
            except (ReplicasLost, ModelError) as error:
                if send == "adapter":
                    raise
                self._say_merged(error)
            self._transfer.close()
            self._transfer = self._transfer_of("file", None, read)
        self.load_weights(read.tensors(self.dtype) if read else named_tensors(self.model))
        return None

    def _counted(self, tensors: Iterable[NamedTensor], item: int | None = None) -> Iterator[NamedTensor]:
        """The same tensors; their bytes are counted as they pass. item: bytes of a number as it is sent."""
        for name, tensor in tensors:
            self._sent_bytes += tensor.numel() * (item or tensor.element_size())
            yield name, tensor

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Bring weights to every server, those that were given up included, and prove each copy before it is used.

        They are read once, in this thread, and not kept unless they are a list. A server that does not take them is
        left out; :class:`ModelError` for one that takes them and is not the model.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        self._again = tensors if isinstance(tensors, list) else None
        version = f"{self._run_name}:{self._updates}"
        adapter = adapter_name(version) if self.takes_adapter else None
        self._router.terms = Terms(tuple(self.stops), self._vocabulary, version, adapter)
        self._sent_bytes = 0
        for number, server in enumerate(self._own.all):  # ours that ended, and those given up that are silent still
            lost = self._updates > 1 and not self._router.all[number].alive
            if not server.running or (lost and not answers(f"{server.url}/health", self._router.silence)):
                self._restart(number)
        item = None if self.takes_adapter else dtype_of(self.dtype).itemsize
        passing = self._parity.against(tensors, adapter=self.takes_adapter)
        copies = self._updated(self._router.all, self._counted(passing, item))
        self._asleep = False
        if not copies:
            raise ReplicasLost(f"no {self.kind.name} server took the weights: {self._router.last_errors()}")
        gaps = self._parity.gaps(self._parity.questions(), [responses for _, responses in copies])
        self._gaps = {replica.number: gap for (replica, _), gap in zip(copies, gaps, strict=True)}
        for (replica, _), gap in zip(copies, gaps, strict=True):
            self._parity.judge(gap, f"the {self.kind.name} server {replica.client.url}")
        for replica, _ in copies:
            self._router.advise(replica)
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
            self._router.take_out(replica, "it is taking new weights")
        clients = [replica.client for replica in replicas]
        run, version = self._router.run, self._router.terms.version
        faults = self._transfer.send(tensors, version, clients, run, self.sync_deadline)
        if self._asleep:
            give_back(self.device)
            cache = Round(clients, run, self.sync_deadline, faults)
            cache.order(*self.kind.awake_cache)
            faults = cache.faults
        outcomes = self._router.ask_all(replicas, faults, self._parity.questions(), self._parity.sampling)
        found = []
        for replica, outcome in zip(replicas, outcomes, strict=True):  # what it answered, or why it is out of use
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
        """Bring back the servers of ours when none is left in the middle of a rollout, with the weights of the last
        update. These have been proved once, and the model may train on meanwhile, so it is not asked again."""
        await asyncio.get_running_loop().run_in_executor(None, self._restart_all)

    def _restart_all(self) -> None:
        for number in range(len(self._own.all)):
            self._restart(number)
        for replica, _ in self._updated(self._router.all, self._last_weights()):
            self._router.run(self._router.admit(replica))
        if not any(replica.alive for replica in self._router.all):
            raise ReplicasLost(f"no {self.kind.name} server could be brought back: {self._router.last_errors()}")

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
            kept = self.kind.asleep_kept if self.takes_adapter else None
            if isinstance(self._transfer, AdapterTransfer) and kept is None:
                self._transfer.forget()
            self._router.order(kept or self.kind.asleep, self.sync_deadline)

    def wake(self) -> None:
        """Take the device again, for weights; they come by :meth:`load_weights`, and the room of a cache after them."""
        if self.placement == "colocated":
            give_back(self.device)
            self._router.order(self.kind.awake_weights, self.sync_deadline)

    def measures(self) -> dict[str, float]:
        """For the metrics of an iteration: each server's gap to the trainer at the last update (the largest difference
        of a log-probability over real tokens, and the KL), servers in use, and what has happened to them so far."""
        found = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.all)),
            "engine_seconds_sync": self._sync_seconds,
            "engine_bytes_sync": float(self._sent_bytes),
        }
        found |= {f"engine_gap_{number}": gap.error for number, gap in sorted(self._gaps.items())}
        return found | {f"engine_{name}": float(count) for name, count in self.counters.items()}

    def close(self) -> None:
        """End the servers that were started here, and remove weights that are on disk."""
        self._close()

    @property
    def under_way(self) -> int:
        return self._router.under_way


def _close_all(closing: list[Callable[[], None]]) -> None:
    """Close what an engine opened, last things first."""
    for close in reversed(closing):
        with contextlib.suppress(Exception):
            close()


class VLLMServerEngine(ServerEngine):
    """Samples at vLLM servers, which exist or are started here."""

    kind = VLLMServers()


class SGLangServerEngine(ServerEngine):
    """Samples at SGLang servers that exist."""

    kind = SGLangServers()
