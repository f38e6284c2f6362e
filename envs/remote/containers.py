"""Containers whose servers worlds are played at: started, looked after, replaced when they die, and always ended.

A process opens the containers of one image and one set of settings once, whoever in it asks: a look at the tasks, the
pool of the training and that of an evaluation share them, and the last to let go ends them. What a killed process left
is removed when the next one starts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from gagpo.base.errors import first_line
from gagpo.envs.pool.restarts import RestartBudget
from gagpo.envs.remote.container_engine import ContainerEngine, EngineFailed, find_engine
from gagpo.envs.remote.container_settings import ContainerSettings, image_of
from gagpo.envs.remote.exchange import ExchangeFailed, exchange, open_http
from gagpo.envs.remote.ownership import OWNER, owner, sweep
from gagpo.envs.remote.protocol import ServerFailed, as_list, as_object
from gagpo.envs.remote.server import Server, require_websockets

LOG = logging.getLogger("gagpo")

LOOK_SECONDS = 2.0  # between two looks at the containers
HEALTH_SECONDS = 10.0  # that one question to a server may take
HEALTH_BYTES = 1 << 16
END_SECONDS = 120.0  # in which an engine has removed them all, or some are left to the next process
FIRST_WAIT, LONGEST_WAIT = 0.1, 30.0  # seconds before one is looked at or replaced again, twice as long each time

Lost = Callable[[ServerFailed], None]
"""Told, in a thread of the containers, that there will be none any more."""


class ContainerFailed(ServerFailed):
    """A container did not start, or ended."""


class _Container:
    """One place among the containers: who runs there now, and where its server answers."""

    def __init__(self) -> None:
        self.name = ""
        self.url = ""
        self.answered = 0.0  # when its server last did
        self.servers: weakref.WeakSet[Server] = weakref.WeakSet()  # told when another takes its place

    def move(self, name: str, url: str) -> None:
        self.name, self.url, self.answered = name, url, time.monotonic()
        for server in list(self.servers):
            server.url = url


class Containers:
    """The containers of one image: all are up when it is made, and one that dies is replaced within the budget.

    Raises :class:`ContainerFailed` where one does not come up, with the last that it wrote, and EngineFailed where the
    engine refuses. Whatever is raised, none is left.
    """

    def __init__(self, engine: ContainerEngine, image: str, settings: ContainerSettings):
        self.image, self._engine, self._settings = image, engine, settings
        self.start_deadline = settings.start_deadline
        self._process = os.getpid()
        self._ending = threading.Event()
        self._budget = RestartBudget(settings.restarts)
        self._made: set[str] = set()  # by name: all that may exist
        self._listeners: list[Lost] = []
        self._failed: ServerFailed | None = None
        self._lock = threading.Lock()
        self._id = self._image_id()
        self.all = [_Container() for _ in range(settings.containers)]
        self._watcher = threading.Thread(target=self._look_after, name="containers", daemon=True)
        sweep(engine)
        try:
            begun = [self._begin() for _ in self.all]  # all start at the same time
            for container, name in zip(self.all, begun, strict=True):
                container.move(name, self._reach(name))
            self._look_at_limits()
        except BaseException:
            self.close()
            raise
        LOG.info("%d containers of %s (%s) are up", len(self.all), image, self._id[:19])
        self._watcher.start()

    def servers(self, train: int, test: int) -> list[Server]:
        """A server for each container, which follows it to wherever its successor answers."""
        made = []
        for container in self.all:
            server = Server(container.url, train, test, proxies=False)
            container.servers.add(server)
            server.url = container.url  # it may have moved just now
            made.append(server)
        return made

    def tell(self, lost: Lost) -> None:
        """Have ``lost`` told when no container takes a dead one's place; at once where that has happened."""
        with self._lock:
            self._listeners.append(lost)
            failed = self._failed
        if failed is not None:
            lost(failed)

    def close(self) -> None:
        """End and remove all of them; idempotent, and nothing in a process that was forked from the one that began."""
        if os.getpid() != self._process:
            return
        self._ending.set()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join(END_SECONDS)
        self._remove_all()

    # Starting and ending ----------------------------------------------------------------------------------------------

    def _image_id(self) -> str:
        """The id of the image, which stays the same when its name comes to mean another."""
        try:
            return str(self._engine.image(self.image).get("Id") or self.image)
        except EngineFailed as error:
            if error.status != 404:
                raise
            raise EngineFailed(
                f"{self._engine.name} has no image {self.image!r}: build it, or fetch it first with `docker pull "
                f"{self.image}` (`podman pull {self.image}`); training fetches none by itself"
            ) from None

    def _begin(self) -> str:
        """Create a container and start it; its name."""
        name = f"gagpo-{uuid.uuid4().hex[:16]}"
        self._made.add(name)  # known before it exists, so that no interruption leaves one behind
        self._engine.create(name, self._settings.creation(self._id, {OWNER: owner()}))
        self._engine.start(name)
        return name

    def _reach(self, name: str) -> str:
        """The address of the server in a container that was just started, once it answers."""
        seconds = self._settings.start_deadline
        end, wait, url = time.monotonic() + seconds, FIRST_WAIT, ""
        while True:
            if fault := self._fault(name):
                raise ContainerFailed(f"a container of {self.image} {fault}")
            url = url or self._address(name)
            if url and _answers(url, min(HEALTH_SECONDS, max(0.1, end - time.monotonic()))):
                return url
            if time.monotonic() + wait > end:
                where = f"port {self._settings.port} (GET /health)" if url else "any port of this machine"
                raise ContainerFailed(
                    f"a container of {self.image} did not answer at {where} within {seconds:g} s; "
                    f"it wrote: {self._wrote(name)}"
                )
            if self._ending.wait(wait):
                raise ContainerFailed(f"the containers of {self.image} are being ended")
            wait = min(2 * wait, 1.0)

    def _address(self, name: str) -> str:
        """Where the server in a running container can be reached; '' as long as the engine does not say."""
        network = as_object(self._engine.inspect(name).get("NetworkSettings"))
        chosen = self._settings.network
        if chosen and self._engine.network(chosen).get("Internal") is True:
            # Nothing is published there, though Podman names a port; only this machine reaches the container's address.
            place = as_object(as_object(network.get("Networks")).get(chosen))
            address = str(place.get("IPAddress") or "")
            if address and not _on_link(address, str(place.get("IPPrefixLen"))):
                raise ContainerFailed(
                    f"a container of {self.image} has the address {address!a:.60}, which is in no network of this "
                    "machine: a rootless engine's internal networks cannot be reached; leave network out"
                )
            return f"http://{address}:{self._settings.port}" if address else ""
        published = as_list(as_object(network.get("Ports")).get(f"{self._settings.port}/tcp"))
        ports = [str(as_object(one).get("HostPort")) for one in published]
        return next((f"http://127.0.0.1:{port}" for port in ports if port.isdecimal() and int(port[:6]) < 65536), "")

    def _look_at_limits(self) -> None:
        """Say so where the engine has taken limits and not set them, as a rootless one does on version 1 of cgroups."""
        host = as_object(self._engine.inspect(self.all[0].name).get("HostConfig"))
        wanted = as_object(self._settings.creation(self._id, {})["HostConfig"])
        ignored = [name for name in ("Memory", "PidsLimit", "NanoCpus") if name in wanted and not host.get(name)]
        if ignored:
            LOG.warning("%s sets no limit of containers: %s are ignored", self._engine.name, ", ".join(ignored))

    def _fault(self, name: str) -> str:
        """What is wrong with a container by the engine's word; '' where it runs."""
        try:
            state = as_object(self._engine.inspect(name).get("State"))
        except EngineFailed as error:
            if error.status != 404:
                raise
            return "was removed"
        if state.get("Running"):
            return ""
        if state.get("OOMKilled"):
            return f"was killed for taking more than memory_mb={self._settings.memory_mb}"
        return f"ended with status {state.get('ExitCode')!a:.10}; it wrote: {self._wrote(name)}"

    def _wrote(self, name: str) -> str:
        lines = [line for line in self._engine.logs(name) if line.strip()]
        return " | ".join(lines)[-500:] or "nothing"

    def _remove_all(self) -> None:
        """What may exist is asked for twice, since an answer can be lost; all of it within a deadline."""
        end = time.monotonic() + END_SECONDS
        for _ in range(2):
            for name in list(self._made):
                if time.monotonic() < end:
                    self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._engine.remove(name)
        except EngineFailed as error:
            LOG.warning("the container %s could not be removed: %s", name, first_line(error))
        else:
            self._made.discard(name)

    # In the thread that looks after them ------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Watch, and remove them in the end: whoever lets go may be in an event loop, where nothing can be asked."""
        self._watch()
        self._ending.wait()
        self._remove_all()

    def _watch(self) -> None:
        missing = False  # the engine did not answer at the last look, and that has been said
        while not self._ending.wait(LOOK_SECONDS):
            try:
                for container in self.all:
                    self._look(container)
                missing = False
            except EngineFailed as error:
                if not missing:
                    LOG.warning("containers are not looked after now: %s", first_line(error))
                missing = True
            except ContainerFailed as error:
                self._fail(error)
                return
            except Exception as error:  # whoever waits for a world must hear of it
                self._fail(ContainerFailed(f"containers of {self.image}: {type(error).__name__}: {first_line(error)}"))
                return

    def _look(self, container: _Container) -> None:
        """Replace a container that has ended, or whose server has not answered for too long."""
        fault = self._fault(container.name)
        if not fault and _answers(container.url, HEALTH_SECONDS):
            container.answered = time.monotonic()
        silent = time.monotonic() - container.answered
        if not fault and silent > self._settings.health_deadline:
            fault = f"has not answered for {silent:.0f} s"
        wait = FIRST_WAIT
        while fault and not self._ending.is_set():
            if not self._budget.take():
                raise ContainerFailed(
                    f"containers of {self.image} were lost too often (restarts={self._settings.restarts} an hour); "
                    f"the last one {fault}"
                )
            LOG.warning("a container of %s %s; another takes its place", self.image, fault)
            self._remove(container.name)
            container.name = self._begin()
            try:
                container.move(container.name, self._reach(container.name))
                return
            except ContainerFailed as error:
                fault = first_line(error, 800).partition(f"a container of {self.image} ")[2] or first_line(error, 800)
            self._ending.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _fail(self, error: ServerFailed) -> None:
        with self._lock:
            self._failed = error
            listeners = list(self._listeners)
        for lost in listeners:
            lost(error)


class ContainerLease:
    """A hold on the containers of this process that have the same image and settings; ``close`` lets go of them.

    One that nobody closes lets go when it is collected, and at the end of the process.
    """

    def __init__(self, env_id: str, values: Mapping[str, Any] | None = None):
        require_websockets()
        image = image_of(env_id)
        settings = ContainerSettings.of(values or {})
        key = json.dumps([os.getpid(), image, settings.model_dump()], sort_keys=True)
        with _LOCK:
            if key not in _OPEN:
                _OPEN[key] = (Containers(find_engine(), image, settings), set())
            self.containers, holders = _OPEN[key]
            number = max(holders, default=0) + 1
            holders.add(number)
        self.close = weakref.finalize(self, _let_go, key, number)

    def servers(self, train: int, test: int) -> list[Server]:
        """A server for each container; ContainerFailed where they do not list the same tasks."""
        servers = self.containers.servers(train, test)
        first = servers[0]
        for other in servers[1:]:
            for split in first.splits:
                if split not in other.splits or other.tasks(split).hash != first.tasks(split).hash:
                    raise ContainerFailed(f"two containers of {self.containers.image} list other tasks of {split!r}")
        return servers


_OPEN: dict[str, tuple[Containers, set[int]]] = {}  # of this process, with who holds them
_LOCK = threading.RLock()


def _let_go(key: str, number: int) -> None:
    with _LOCK:
        containers, holders = _OPEN[key]
        holders.discard(number)
        if holders:
            return
        del _OPEN[key]
    containers.close()


def _on_link(address: str, prefix: str) -> bool:
    """Whether this machine is itself in the network of an address; what is elsewhere would be asked of a stranger."""
    try:
        network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
        with socket.socket(socket.AF_INET6 if network.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect((address, 9))  # nothing is sent: the kernel says from where it would be
            return ipaddress.ip_address(one.getsockname()[0]) in network
    except (OSError, ValueError):
        return False


def _answers(url: str, seconds: float) -> bool:
    """Whether a server answers at all. One that knows no /health is well when it says so."""

    async def ask() -> bool:
        try:
            async with open_http(proxies=False) as http:
                reply = await exchange(http, "GET", f"{url}/health", None, deadline=seconds, most=HEALTH_BYTES)
        except ExchangeFailed:  # let out of the loop, it would keep the frames of all callers, and so their leases
            return False
        return reply.status < 500

    return asyncio.run(ask())
