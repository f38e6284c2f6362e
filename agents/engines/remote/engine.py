"""The engine ``vllm``: sampling by vLLM servers that exist or are started by it."""

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
from typing import TYPE_CHECKING

from gagpo.agents.engines.base import Finished, ModelEngine, Request, Response, Sampling, release_memory
from gagpo.agents.engines.options import EngineInputs
from gagpo.agents.engines.parity import LogprobGap, ParityCheck
from gagpo.agents.engines.peers import NoPeers, Peers, first_on_machine
from gagpo.agents.engines.remote.adapter_transfer import AdapterTransfer, max_rank
from gagpo.agents.engines.remote.client import Client, ReplicaError, ServedModel, temperature_of
from gagpo.agents.engines.remote.nccl_transfer import NcclTransfer
from gagpo.agents.engines.remote.placement import ServerShare, is_local, share_of, share_of_started
from gagpo.agents.engines.remote.replicas import NEW, Replica, ReplicaRouter, ReplicasLost
from gagpo.agents.engines.remote.server import BACKENDS, Server, ServerPlan, StartedServers, plan_servers
from gagpo.agents.engines.remote.transfer import FileTransfer, Transfer, at_all
from gagpo.agents.engines.remote.weight_folder import WeightFolder, parent_of_files
from gagpo.base.errors import InvalidArgument
from gagpo.base.rank import Rank
from gagpo.base.tables import ascii_only
from gagpo.model.adapters import base_tensors
from gagpo.model.dtypes import dtype_of, name_of
from gagpo.model.loading import ModelError
from gagpo.model.shape import config_of
from gagpo.model.weights import NamedTensor, PolicyTensors

if TYPE_CHECKING:
    from gagpo.agents.engines.remote.options import VLLMOptions

LOG = logging.getLogger("gagpo")

RESTARTS = 10  # in an hour, of servers that the engine started

SLEEP = "/sleep?level=2"  # drops the weights
SLEEP_KEEPING = "/sleep?level=1"  # keeps them in the host's memory
WAKE_WEIGHTS = "/wake_up?tags=weights"
WAKE_CACHE = "/wake_up?tags=kv_cache"


class VLLMServerEngine(ModelEngine):
    """Samples at vLLM servers, which hold copies of ``model`` that :meth:`load_weights` updates.

    Weights, prompt, sampling and seed determine a response up to rounding, whichever server gives it.

    inputs: the model and how to sample from it.
    options: which servers, and how many.
    start_server: makes a server that the engine starts.
    rank: of this process, for its GPUs; by default that of the peers, or from torchrun's variables.

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
        self.peers: Peers = inputs.peers or NoPeers()
        self.rank = rank or (Rank.of(os.environ) if inputs.peers is None else _rank_of(inputs.peers))
        self._reader = inputs.reader
        self._own_weights = inputs.own_weights
        if self._reader is not None:
            self.device = self._reader.device  # the model itself may be on the device meta
        self.placement = options.placement or "separate"
        if options.is_colocated(self.device.type):
            self.placement = "colocated"
        self._vocab_size = len(self.model.get_input_embeddings().weight)  # type: ignore[operator, arg-type]
        self._plans = [] if options.urls else self._planned(inputs.memory)
        self._start_server = start_server
        self._parity = ParityCheck(self.model, self.dtype, self.max_length, self._reader)
        self._run_id = ""  # tells our weights from those that an earlier trainer sent to a server
        self._updates = 0
        self._gaps: dict[int, LogprobGap] = {}
        self._caches_freed = False  # from sleep until the servers' caches are allocated again
        self._sync_seconds = 0.0
        self._servers = StartedServers(RESTARTS, options.start_timeout)
        self._share = ServerShare((), (), ())
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
            backend=BACKENDS[self.options.transfer],
        )
        return plan_servers(plan, self.options, self.placement, self.device, self.rank)

    @property
    def _policy(self) -> PolicyTensors:
        """The weights of the policy."""
        return self._reader.tensors(self.dtype) if self._reader else PolicyTensors(self.model)

    def start(self) -> None:
        """Start the servers, or connect to those that exist, and send them the weights of the model.

        With several ranks all must call it together, because they gather the weights. A second call does nothing.

        Raises: ModelError if a server cannot run the model or does not reproduce it; ReplicasLost if no server is left.
        """
        if self._started is not None:
            return
        try:
            temporary = tempfile.TemporaryDirectory(prefix="gagpo-servers-")
            self._closing += [temporary.cleanup, self._servers.close]
            if self._plans:
                self._start_servers(Path(temporary.name) / "config", Path(self.options.logs or temporary.name))
            urls = self._all_servers()
            router = ReplicaRouter(
                {number: urls[number] for number in (*self._share.home, *self._share.reserve)},
                reserve=self._share.reserve,
                deadline=self.options.timeout,
                health_timeout=self.options.health_timeout,
                recover=self._recover if self._plans and self.peers.world_size == 1 else None,
            )
            self._closing.append(router.close)
            router.start()
            self._transfer = self._make_transfer(urls, router)
            self._closing.append(self._transfer.close)
            self._started = router
            weights: Iterable[NamedTensor] = self._policy
            if self._model_changes:
                # Servers that are started again need these weights.
                weights = [(name, tensor.clone()) for name, tensor in weights]
            self.load_weights(weights)
        except BaseException:
            self.close()
            raise

    def _start_servers(self, config_folder: Path, logs: Path) -> None:
        """Start all planned servers at once and wait until they are ready; a start takes minutes.

        If vLLM cannot load adapters of the model's family, they are started again without, and adapters are merged.
        """
        config_of(self.model).save_pretrained(str(config_folder))
        adapter_form = self._policy.adapter_form
        plans = [replace(plan, folder=str(config_folder)) for plan in self._plans]
        lora_rank = None if adapter_form is None or self._model_changes else max_rank(adapter_form.rank)
        try:
            self._start_planned([replace(plan, max_lora_rank=lora_rank) for plan in plans], logs)
        except ModelError as error:
            if lora_rank is None or "lora" not in str(error).lower():
                raise
            LOG.warning("the vLLM servers get the adapter merged into all weights: %s", ascii_only(str(error))[:300])
            self._start_planned(plans, logs)

    @property
    def _model_changes(self) -> bool:
        """Whether the model is trained while the engine samples, so that updates bring copies of all weights."""
        trained = any(parameter.requires_grad for parameter in self.model.parameters())
        return self._own_weights and self._reader is None and trained

    def _start_planned(self, plans: Sequence[ServerPlan], logs: Path) -> None:
        files = (logs / f"server-{self.rank.rank}-{number}.log" for number in range(len(plans)))
        self._servers.start(map(self._start_server, plans, files))

    def _all_servers(self) -> list[str]:
        """The addresses of all servers that this rank may use, in the order of their numbers; sets its share."""
        started = [server.url for server in self._servers.all]
        run_ids, urls_of_ranks = zip(*self.peers.gathered([secrets.token_hex(4), started]), strict=True)
        self._run_id = run_ids[0]
        if self.options.urls:
            self._share = share_of(len(self.options.urls), self.peers)
            return list(self.options.urls)
        first = first_on_machine(self.peers)
        urls_here = urls_of_ranks[first : first + self.peers.local_world_size]
        self._share = share_of_started([len(urls) for urls in urls_here], self.peers)
        return [url for urls in urls_here for url in urls]

    def _make_transfer(self, urls: Sequence[str], router: ReplicaRouter) -> Transfer:
        """How weights get to the servers that this rank updates."""
        adapter_form = None if self._model_changes else self._policy.adapter_form
        if adapter_form is not None and max_rank(adapter_form.rank) is None:
            adapter_form = None
        over_nccl = self.options.transfer == "nccl"
        if over_nccl and self.device.type != "cuda":
            raise InvalidArgument(
                f"engine.options.transfer=nccl needs device=cuda (got {self.device.type})",
                key="engine.options.transfer",
            )
        path: Path | None = None
        if self.peers.local == 0 and (adapter_form is not None or not over_nccl):
            folder = self._make_folder(urls)
            self._closing.append(folder.close)
            path = folder.path
        transfer: Transfer
        if over_nccl:
            transfer = NcclTransfer(self.model, self.dtype, self.device, router.run, router.deadline)
        else:
            transfer = FileTransfer(self.model, self.dtype, path, self.peers, router.run, router.deadline)
        if adapter_form is None:
            return transfer
        return AdapterTransfer(adapter_form, transfer, path, self.peers, router.run, router.deadline)

    def _make_folder(self, urls: Sequence[str]) -> WeightFolder:
        """The folder for the files of this machine. Raises: InvalidArgument if a server cannot see it."""
        if self.options.folder is not None:
            return WeightFolder(Path(self.options.folder), readable=True)
        remote = next((url for url in urls if not is_local(url)), None)
        if remote is not None:
            raise InvalidArgument(
                "is on another machine",
                key="folder",
                where=f"the server {remote}",
                advice="set engine.options.folder to a folder that it and this machine see under the same path",
            )
        size = sum(parameter.numel() for _, parameter in base_tensors(self.model)) * dtype_of(self.dtype).itemsize
        return WeightFolder(parent_of_files(size))

    @property
    def _router(self) -> ReplicaRouter:
        if self._started is None:
            raise InvalidArgument("the vLLM engine has no servers yet", advice="call its method start() first")
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

        The tensors are read once, in this thread. A server that fails is left out. Ranks that share servers call it
        together: one of them updates a server, and each checks the servers that it samples at.

        Raises: ModelError if a server does not give the model's log-probabilities.
        """
        self._require_idle()
        begun = time.perf_counter()
        self._updates += 1
        version = f"{self._run_id}:{self._updates}"
        router = self._router
        router.model = ServedModel(tuple(self.stops), self._vocab_size, version)
        self._restart_lost()
        in_use = {replica.number for replica in router.all if replica.alive}
        ready = self._update_all(self._parity.against(tensors))
        self._caches_freed = False
        answers = router.run(self._ask_all(self._checked_replicas(ready)))
        if not answers:
            raise ReplicasLost(f"no vLLM server took the weights: {router.last_errors()}")
        gaps = self._parity.gaps(self._parity.prompts(), [responses for _, responses in answers])
        self._gaps = {replica.number: gap for (replica, _), gap in zip(answers, gaps, strict=True)}
        for (replica, _), gap in zip(answers, gaps, strict=True):
            self._parity.judge(gap, f"the vLLM server {replica.client.url}")
        answered = {replica.number for replica, _ in answers}
        for replica in ready:
            if replica.reserve or replica.number in answered:
                router.run(router.admit(replica))
        for replica in router.home:
            if replica.number in in_use and not replica.alive:
                router.report_loss(replica, len(router.in_use))
        self._ready = True
        self._sync_seconds = time.perf_counter() - begun

    def _checked_replicas(self, ready: Sequence[Replica]) -> list[Replica]:
        """The servers to compare with the model: those of this rank, else one that it falls back on."""
        return [replica for replica in ready if not replica.reserve] or list(ready[:1])

    def _restart_lost(self) -> None:
        """Restart servers that ended, wait for lost weights, or were given up and still do not answer."""
        for index, server in enumerate(self._servers.all):
            replica = self._router.home[index]
            given_up = self._updates > 1 and not replica.alive
            if not server.running or replica.client.hangs or (given_up and not self._router.is_healthy(replica)):
                self._restart(index)

    def _update_all(self, tensors: Iterable[NamedTensor]) -> list[Replica]:
        """Update all servers, each by its rank; returns those that have the new weights. None is in use yet."""
        router = self._router
        for replica in router.all:
            router.run(router.withdraw(replica, "it is taking new weights"))
        updated = [replica for replica in router.all if replica.number in self._share.updated]
        release_memory(self.device)  # a server on the same GPU needs it to load the weights
        faults = self._transfer.update(tensors, router.model.version, [replica.client for replica in updated])
        if self._caches_freed:  # wake allocated memory for the weights only, because loading needs some
            faults = self._wake_caches(updated, faults)
        statuses = self._exchange(updated, faults)
        self._transfer.release()
        for replica in router.all:
            url, error, adapter = statuses[replica.number]
            if url != replica.client.url:  # another rank has started it again
                router.run(router.move(replica, url))
            replica.client.adapter = adapter
            router.run(router.withdraw(replica, error or NEW))
        return [replica for replica in router.all if not statuses[replica.number][1]]

    def _wake_caches(
        self, updated: Sequence[Replica], faults: Sequence[ReplicaError | None]
    ) -> list[ReplicaError | None]:
        """Have the servers that took the weights allocate their caches; returns the faults of all."""

        async def wake(client: Client) -> None:
            await client.post(WAKE_CACHE, None, self._router.deadline)

        updated_clients = [replica.client for replica, fault in zip(updated, faults, strict=True) if fault is None]
        later = dict(
            zip(
                (client.url for client in updated_clients), self._router.run(at_all(updated_clients, wake)), strict=True
            )
        )
        return [fault or later[replica.client.url] for replica, fault in zip(updated, faults, strict=True)]

    def _exchange(
        self, updated: Sequence[Replica], faults: Sequence[ReplicaError | None]
    ) -> dict[int, tuple[str, str, str | None]]:
        """Address, fault ('' for none) and adapter of every server of this rank's list, from the ranks that update."""
        reports = [
            [replica.number, replica.client.url, str(fault or ""), replica.client.adapter]
            for replica, fault in zip(updated, faults, strict=True)
        ]
        gathered = self.peers.gathered(reports)
        if not self.options.urls:  # servers that ranks have started serve their own machine
            first = first_on_machine(self.peers)
            gathered = gathered[first : first + self.peers.local_world_size]
        return {number: (url, error, adapter) for rank in gathered for number, url, error, adapter in rank}

    async def _ask_all(self, replicas: Sequence[Replica]) -> list[tuple[Replica, list[Response]]]:
        """Ask servers the prompts of the parity check; returns those that answered, with their responses."""
        router, prompts = self._router, self._parity.prompts()

        async def ask(replica: Replica) -> list[Response]:
            calls = [replica.client.generate(prompt, self._parity.sampling, router.model) for prompt in prompts]
            try:
                return await asyncio.gather(*calls)
            except ReplicaError as error:
                await router.withdraw(replica, str(error))
                return []

        answers = await asyncio.gather(*map(ask, replicas))
        return [(replica, answer) for replica, answer in zip(replicas, answers, strict=True) if answer]

    def _restart(self, index: int) -> None:
        if self._servers.restart(index):
            self._router.counters.restarts += 1
            self._router.run(self._router.move(self._router.home[index], self._servers.all[index].url))

    async def _recover(self) -> None:
        """Restart all servers with the weights of the last update, when none is left during a rollout.

        It runs in the router's loop. Restarting waits for that loop, so it takes place in another thread. The weights
        are not checked again, since the model may have changed.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._restart_all)

    def _restart_all(self) -> None:
        router = self._router
        for index in range(len(self._servers.all)):
            self._restart(index)
        weights = self._parity.last_weights()
        if weights is None:
            raise ReplicasLost(f"no vLLM server is left: {router.last_errors()}")
        for replica in self._update_all(weights):
            router.run(router.admit(replica))
        if not any(replica.alive for replica in router.all):
            raise ReplicasLost(f"no vLLM server could be brought back: {router.last_errors()}")

    def sleep(self) -> None:
        """Free the device of a colocated server, weights included."""
        self._require_idle()
        if self.placement == "colocated":
            self._ready = False
            self._caches_freed = True
            self._router.post_to_all(SLEEP_KEEPING if self._transfer.has_base else SLEEP)

    def wake(self) -> None:
        """Allocate memory for weights; :meth:`load_weights` fills it and allocates the cache."""
        if self.placement == "colocated":
            release_memory(self.device)
            self._router.post_to_all(WAKE_WEIGHTS)

    def measures(self) -> dict[str, float]:
        """Metrics: gaps, seconds and bytes of the last update, servers in use, and :class:`ServerCounters`.

        Of servers that several ranks use, each rank reports those that it samples at.
        """
        measures = {
            "engine_gap": max((gap.error for gap in self._gaps.values()), default=0.0),
            "engine_kl": max((gap.kl for gap in self._gaps.values()), default=0.0),
            "engine_servers": float(sum(replica.alive for replica in self._router.home)),
            "engine_seconds_sync": self._sync_seconds,
            "engine_bytes_sync": float(self._transfer.bytes),
        }
        measures |= {f"engine_gap_{number}": gap.error for number, gap in sorted(self._gaps.items())}
        return measures | {f"engine_{name}": float(count) for name, count in self.counters.items()}

    def close(self) -> None:
        """End the servers that it started, and remove weights from the disk; may be called twice."""
        self._close()


def _rank_of(peers: Peers) -> Rank:
    return Rank(peers.rank, peers.world_size, peers.local, peers.local_world_size)


def _close_all(closing: list[Callable[[], None]]) -> None:
    """Close what an engine started, in reverse order."""
    for close in reversed(closing):
        with contextlib.suppress(Exception):
            close()
