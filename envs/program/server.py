"""The gateway of agent programs: each episode has a key, which its requests must send."""

from __future__ import annotations

from collections import OrderedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gagpo.envs.gateway.bodies import parse_object, read_body
from gagpo.envs.gateway.messages import GatewayError
from gagpo.envs.gateway.server import Answer, GatewayClient, GatewayServer, key_of
from gagpo.envs.program.episodes import ProgramEpisode

_REMEMBERED = 10_000  # keys of ended episodes


class ProgramServer(GatewayServer):
    """Answers the requests of episodes, by their keys, and takes the rewards that programs post."""

    def __init__(self) -> None:
        super().__init__()
        self._episodes: dict[str, ProgramEpisode] = {}
        self._ended_keys: OrderedDict[str, None] = OrderedDict()

    def admit(self, episode: ProgramEpisode) -> dict[str, str]:
        """Accept requests of the episode; returns the variables with which a program finds the server."""
        self._episodes[episode.token] = episode
        urls = {"OPENAI_BASE_URL": f"{self.address}/v1", "ANTHROPIC_BASE_URL": self.address}
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), episode.token)
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        return {**urls, **keys, **direct, "GAGPO_REWARD_URL": f"{self.address}/reward"}

    def dismiss(self, episode: ProgramEpisode) -> None:
        """Accept no more requests of the episode."""
        self._reading.pop(episode.token, None)
        if self._episodes.pop(episode.token, None):
            self._ended_keys[episode.token] = None
            while len(self._ended_keys) > _REMEMBERED:
                self._ended_keys.popitem(last=False)

    @property
    def num_clients(self) -> int:
        return len(self._episodes)

    def _answers(self) -> dict[tuple[str, str], Answer]:
        return super()._answers() | {("POST", "/reward"): self._reward}

    def _client(self, request: Request) -> GatewayClient:
        """The sender of a request. Raises: GatewayError for a wrong key."""
        token = key_of(request)
        if token in self._ended_keys:
            raise GatewayError(409, "the episode of this key is over")
        if token not in self._episodes:
            raise GatewayError(401, "no episode has this key: send the $OPENAI_API_KEY that the program finds")
        return self._episodes[token]

    async def _reward(self, episode: GatewayClient, request: Request) -> Response:
        assert isinstance(episode, ProgramEpisode)
        with self._body_memory.reserve(episode.token) as reservation:
            body = parse_object(await read_body(request, reservation))
        episode.require_running()
        if episode.judge is not None:  # a program must not reward itself
            raise GatewayError(403, "a reward function rewards this episode: do not post to $GAGPO_REWARD_URL")
        episode.report(body)
        return JSONResponse({})
