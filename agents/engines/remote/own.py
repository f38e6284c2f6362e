"""The servers that an engine has started itself, which it starts again when they are lost, not too often."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gagpo.agents.engines.remote.server import Server
from gagpo.agents.model import ModelError
from gagpo.base.tables import ascii_only
from gagpo.envs.pool.restarts import RestartBudget

LOG = logging.getLogger("gagpo")


class OwnServers:
    """Servers by number. name: of their kind. restarts: in an hour; start_deadline: seconds for one to start."""

    def __init__(self, name: str, restarts: int, start_deadline: float):
        self.all: list[Server] = []
        self.budget = RestartBudget(restarts)
        self._name, self._start_deadline = name, start_deadline
        self._left_out: set[int] = set()  # that wait for the next hour

    def start(self, servers: Iterable[Server]) -> None:
        """Start servers in place of those that run; ModelError when one ends or takes too long."""
        self.close()
        self.all += servers
        for server in self.all:
            server.start()
        for server in self.all:
            server.wait(self._start_deadline)

    def restart(self, number: int) -> bool:
        """Start a server again; it stays out of use where that fails or has been done too often."""
        if not self.budget.take():
            if number not in self._left_out:
                most = self.budget.most
                LOG.warning("a %s server stays lost: the restarts of this hour (%d) are used up", self._name, most)
            self._left_out.add(number)
            return False
        self._left_out.discard(number)
        server = self.all[number]
        try:
            server.start()
            server.wait(self._start_deadline)
        except ModelError as error:
            LOG.warning("a %s server could not be started again: %s", self._name, ascii_only(str(error)))
            return False
        LOG.warning("started a %s server again, now %s", self._name, server.url)
        return True

    def close(self) -> None:
        """End them all; closing twice is once."""
        for server in self.all:
            server.close()
        self.all.clear()
