"""One session of an OpenEnv server: its answers as outcomes of a text environment, and its faults."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from gagpo.base.errors import MissingPackage, first_line
from gagpo.envs.base import Outcome
from gagpo.envs.openenv.errors import ServerFailed, ServerFull, ServerLost, ServerSilent

CONNECT_SECONDS = 4.0
MAX_STATE = 1000  # characters of a state key
FULL = "CAPACITY_REACHED"  # OpenEnv's code for a server that admits no further session


class Session:
    """Runs episodes in one session of the server, through OpenEnv's client; used in one event loop.

    The observation is the field ``text`` if the server sends no other text, else all fields as JSON. ``truncated``,
    ``success``, ``valid``, ``state`` and ``answer`` are read from the answer's metadata. The connection is made by the
    first reset, because a server admits few sessions.

    url: the server's address.
    field: the field of an action that carries the text.

    Raises:
        MissingPackage: openenv is not installed.
    """

    def __init__(self, url: str, field: str = "action"):
        try:
            from gagpo.envs.openenv.client import CheckedClient
        except ImportError:
            raise MissingPackage(
                "an OpenEnv server requires the package openenv", advice="pip install -e '.[openenv]'"
            ) from None
        self.url = url
        self.field = field
        # The caller's deadline applies to an answer, so the client's is only a bound.
        self._client: Any = CheckedClient(url, connect_timeout_s=CONNECT_SECONDS, message_timeout_s=3600.0)

    async def reset(self, arguments: Mapping[str, object], task: str = "") -> Outcome:
        """Start an episode. task: its id, compared with the server's where the server sends one."""
        result = await self._ask(self._client.reset, **arguments)
        sent = self._metadata(result).get("task")
        if task and sent is not None and sent != task:
            raise ServerFailed(
                f"has another task in this place, {sent!a:.80} and not {task!r:.80}",
                where=self.url,
                advice="start all servers of an environment with the same arguments",
            )
        return self._outcome(result)

    async def step(self, action: str) -> Outcome:
        return self._outcome(await self._ask(self._client.step, {self.field: action}))

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a request of the client, which assumes that every message has the right shape."""
        from websockets.exceptions import ConnectionClosed

        try:
            return await request(*arguments, **options)
        except TimeoutError:
            raise ServerSilent("did not answer in time", where=self.url) from None
        except (ConnectionError, ConnectionClosed, OSError) as error:
            raise ServerLost(f"cannot be reached: {first_line(error)}", where=self.url) from None
        except RuntimeError as error:  # the client's form of an error message of the server
            if FULL in str(error):
                raise ServerFull("admits no further session", where=self.url) from None
            raise ServerFailed(f"{first_line(error)}", where=self.url) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerFailed(f"sent a message that cannot be read: {first_line(error)}", where=self.url) from None

    def _outcome(self, result: Any) -> Outcome:
        facts = self._metadata(result)
        reward = self._reward(result.reward)
        truncated = self._flag("truncated", facts.get("truncated", False))
        terminated = self._flag("done", result.done or False) and not truncated
        state, answer = facts.get("state"), facts.get("answer")
        if state is not None and not (isinstance(state, str) and len(state) <= MAX_STATE):
            raise ServerFailed(
                f"state must be a text of at most {MAX_STATE} characters, got {state!a:.40}",
                key="state",
                where=self.url,
            )
        actions = result.observation.get("admissible_actions") if isinstance(result.observation, dict) else None
        are_texts = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
        return Outcome(
            _as_text(result.observation),
            reward,
            terminated,
            success=self._flag("success", facts.get("success", terminated and reward > 0)),
            valid=self._flag("valid", facts.get("valid", True)),
            state=state,
            admissible_actions=actions if are_texts else None,
            extras={"answer": answer} if isinstance(answer, str) else {},
            truncated=truncated,
        )

    @staticmethod
    def _metadata(result: Any) -> Mapping[str, Any]:
        return result.metadata if isinstance(result.metadata, dict) else {}

    def _flag(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise ServerFailed(f"{name} must be true or false, got {value!a:.40}", key=name, where=self.url)
        return value

    def _reward(self, reward: object) -> float:
        if reward is None:
            return 0.0
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise ServerFailed(f"the reward must be a finite number, got {reward!a:.40}", where=self.url)
        return float(reward)


def _as_text(observation: object) -> str:
    """The field ``text`` if there is no other text to read, else all fields as JSON."""
    text = json.dumps(observation, sort_keys=True)
    if isinstance(observation, dict) and set(observation) <= {"text", "admissible_actions"}:
        content = observation.get("text")
        text = content if isinstance(content, str) else text
    return text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates
