"""Faults of an OpenEnv server."""

from gagpo.base.errors import GagpoError


class ServerFailed(GagpoError):
    """The server cannot be reached, or its answer is not one of an environment."""


class ServerLost(ServerFailed):
    """There is no connection: the server has ended, or its machine or network is down."""


class ServerFull(ServerFailed):
    """The server has as many sessions as it admits."""


class ServerSilent(ServerFailed):
    """The server did not answer in time."""
