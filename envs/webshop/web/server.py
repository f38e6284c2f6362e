"""A waitress server that slow clients cannot block.

waitress restarts a connection's timeout at every byte, so slow clients can occupy all connections. Here a request must
arrive, and a response must be read, within a fixed time. If all connections are in use, the ones that have waited
longest for a request are closed.
"""

from __future__ import annotations

import time

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

MOST_CONNECTIONS = 500
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 60.0
FREED = MOST_CONNECTIONS // 10  # connections closed at once when all are in use


class VisitorChannel(HTTPChannel):  # type: ignore[misc]
    """A connection that records since when it waits for a whole request, or for its response to be read."""

    def __init__(self, *arguments: object, **named: object):
        self.since = time.monotonic()
        super().__init__(*arguments, **named)

    def received(self, data: bytes) -> bool:
        taken = bool(super().received(data))
        if self.requests:
            self.since = time.monotonic()
        return taken

    @property
    def waits(self) -> bool:
        """Whether no request of this connection is being processed."""
        return not self.requests and not self.will_close


class ShopServer(TcpWSGIServer):  # type: ignore[misc]
    """The server of one address; takes the arguments of ``waitress.create_server``."""

    channel_class = VisitorChannel

    def __init__(self, application: object, **settings: object):
        super().__init__(
            application, connection_limit=MOST_CONNECTIONS, cleanup_interval=1, asyncore_use_poll=True, **settings
        )

    def readable(self) -> bool:
        # Called before every wait for events, in the only thread that may touch connections.
        if len(self._map) >= MOST_CONNECTIONS:
            waiting = [channel for channel in self.active_channels.values() if channel.waits]
            for channel in sorted(waiting, key=lambda channel: channel.since)[:FREED]:
                channel.will_close = True
        return bool(super().readable())

    def maintenance(self, now: float) -> None:
        """Close connections that have waited too long; called once a second."""
        for channel in self.active_channels.values():
            patience = ANSWER_SECONDS if channel.total_outbufs_len else REQUEST_SECONDS
            if channel.waits and time.monotonic() - channel.since > patience:
                channel.will_close = True
