"""waitress, made to keep serving while others hold connections open and send or read a byte now and then.

waitress takes any byte for a sign of life: as many such visitors as it accepts connections shut everybody else out.
Here a request has to arrive, and an answer to leave, within a time that sending bytes does not prolong; and when all
connections are in use, those that have waited longest for a request make room.
"""

from __future__ import annotations

import time

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

MOST_CONNECTIONS = 500
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 60.0
ROOM = MOST_CONNECTIONS // 10  # connections freed at once when all are in use


class VisitorChannel(HTTPChannel):  # type: ignore[misc]
    """A connection that knows since when it waits for a whole request, or for its answer to be taken."""

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
        """Whether nothing is being worked out for this connection."""
        return not self.requests and not self.will_close


class ShopServer(TcpWSGIServer):  # type: ignore[misc]
    """The server of one address; takes the arguments of ``waitress.create_server``."""

    channel_class = VisitorChannel

    def __init__(self, application: object, **settings: object):
        super().__init__(
            application, connection_limit=MOST_CONNECTIONS, cleanup_interval=1, asyncore_use_poll=True, **settings
        )

    def readable(self) -> bool:
        # Asked before every wait for events, in the thread that alone may touch connections.
        if len(self._map) >= MOST_CONNECTIONS:
            waiting = [channel for channel in self.active_channels.values() if channel.waits]
            for channel in sorted(waiting, key=lambda channel: channel.since)[:ROOM]:
                channel.will_close = True
        return bool(super().readable())

    def maintenance(self, now: float) -> None:
        """Close what has waited too long; called once a second."""
        for channel in self.active_channels.values():
            patience = ANSWER_SECONDS if channel.total_outbufs_len else REQUEST_SECONDS
            if channel.waits and time.monotonic() - channel.since > patience:
                channel.will_close = True
