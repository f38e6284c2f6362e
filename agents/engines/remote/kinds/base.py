"""What a kind of server has to know: how it is asked, what its answers mean, and which calls change its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.remote.wire import HIGHEST, NO_LOGPROB, Span, Terms, checked_response, require_version

if TYPE_CHECKING:
    import torch

    from gagpo.agents.engines.remote.client import Client
    from gagpo.agents.engines.remote.transfer import Transfer

Order = tuple[str, Mapping[str, object] | None]
"""A call that is answered with nothing of interest: its path and its JSON body."""


Logprob = Annotated[float, Field(gt=NO_LOGPROB, le=HIGHEST)]
"""A log-probability in an answer."""


@dataclass(frozen=True)
class ServerAnswer:
    """What an answer says. ids: its tokens. sampled: each token once more, with its log-probability.

    reason: why it ended, ``stop`` or ``length``. spans: the weights that its tokens are of.
    """

    ids: Sequence[int]
    sampled: Sequence[tuple[int, float]]
    reason: str
    spans: Sequence[Span]


class ServerKind(ABC):
    """A kind of server that samples for an engine.

    name: as its makers write it. generating: the path that tokens are asked of. starting: what starts a server that
    answers as an engine must, for messages. transfers: the ways that weights reach it. starts: whether an engine can
    start servers of this kind itself.

    adapters: what the paths of its calls for adapters begin with.

    asleep: what frees the device of a server, ``asleep_kept`` the same with the weights kept in the host's memory;
    awake_weights, awake_cache: what takes the room of weights, and then of the cache.
    """

    name: str
    generating: str
    starting: str
    transfers: tuple[str, ...]
    starts: bool
    adapters: str
    asleep: Order
    asleep_kept: Order | None
    awake_weights: Order
    awake_cache: Order

    @abstractmethod
    def require_exact(self, request: Request, sampling: Sampling) -> None:
        """InvalidArgument for a sampling that these servers cannot give exactly."""

    @abstractmethod
    def question(self, request: Request, sampling: Sampling, terms: Terms) -> bytes:
        """The body of a request to :attr:`generating`."""

    @abstractmethod
    def read_answer(self, body: bytes) -> ServerAnswer:
        """What an answer says; raises :class:`gagpo.agents.engines.remote.wire.MalformedAnswer` where it is none."""

    def parse(self, body: bytes, most: int, terms: Terms) -> Response:
        """The response of at most ``most`` tokens in an answer.

        Raises :class:`gagpo.agents.engines.remote.wire.MalformedAnswer`, or ``StaleWeights`` for one of other weights.
        """
        told = self.read_answer(body)
        response = checked_response(told.ids, told.sampled, told.reason, most, terms)
        require_version(told.spans, len(told.ids), terms)
        return response

    @abstractmethod
    def make_transfer(
        self, way: str, model: torch.nn.Module, dtype: str, device: torch.device, folder: Path
    ) -> Transfer:
        """What brings weights by ``way``, one of :attr:`transfers`; InvalidArgument where ``device`` cannot do it."""

    def load_adapter(self, name: str, path: Path) -> Order:
        """What has a server read the adapter in a folder, to be known by ``name``."""
        return f"{self.adapters}/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}

    @abstractmethod
    def name_weights(self, version: str) -> Order:
        """What has a server call the weights that it has ``version``."""

    def unload_adapter(self, name: str) -> Order:
        """What has a server forget the adapter called ``name``."""
        return f"{self.adapters}/unload_lora_adapter", {"lora_name": name}

    async def advice(self, client: Client, deadline: float) -> str:
        """What the user should know of how a server was started, ``''`` for nothing."""
        return ""
