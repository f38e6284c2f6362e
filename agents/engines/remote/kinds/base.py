"""What a kind of server has to know: how it is asked, what its answers mean, and which calls change its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.remote.wire import Terms

if TYPE_CHECKING:
    import torch

    from gagpo.agents.engines.remote.client import Client
    from gagpo.agents.engines.remote.transfer import Transfer

Order = tuple[str, Mapping[str, object] | None]
"""A call that is answered with nothing of interest: its path and its JSON body."""


class ServerKind(Protocol):
    """A kind of server that samples for an engine.

    name: as its makers write it. generating: the path that tokens are asked of. starting: what starts a server that
    answers as an engine must, for messages. transfers: the ways that weights reach it. starts: whether an engine can
    start servers of this kind itself.

    asleep: what frees the device of a server, ``asleep_kept`` the same with the weights kept in the host's memory;
    awake_weights, awake_cache: what takes the room of weights, and then of the cache.
    """

    name: str
    generating: str
    starting: str
    transfers: tuple[str, ...]
    starts: bool
    asleep: Order
    asleep_kept: Order | None
    awake_weights: Order
    awake_cache: Order

    def require_exact(self, request: Request, sampling: Sampling) -> None:
        """InvalidArgument for a sampling that these servers cannot give exactly."""
        ...

    def question(self, request: Request, sampling: Sampling, terms: Terms) -> bytes:
        """The body of a request to :attr:`generating`."""
        ...

    def parse(self, body: bytes, most: int, terms: Terms) -> Response:
        """The response of at most ``most`` tokens in an answer.

        Raises :class:`gagpo.agents.engines.remote.wire.MalformedAnswer`, or ``StaleWeights`` for one of other weights.
        """
        ...

    def make_transfer(
        self, way: str, model: torch.nn.Module, dtype: str, device: torch.device, folder: Path
    ) -> Transfer:
        """What brings weights by ``way``, one of :attr:`transfers`; InvalidArgument where ``device`` cannot do it."""
        ...

    def load_adapter(self, name: str, path: Path) -> Order:
        """What has a server read the adapter in a folder, to be known by ``name``."""
        ...

    def name_weights(self, version: str) -> Order:
        """What has a server call the weights that it has ``version``."""
        ...

    def unload_adapter(self, name: str) -> Order:
        """What has a server forget the adapter called ``name``."""
        ...

    async def advice(self, client: Client, deadline: float) -> str:
        """What the user should know of how a server was started, ``''`` for nothing."""
        ...
