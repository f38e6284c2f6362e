"""A teacher behind a vLLM server: what it says of given tokens (``prompt_logprobs``), asked within deadlines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gagpo.base.errors import GagpoError
from gagpo.envs.remote.exchange import ExchangeFailed, Reply, exchange, open_http
from gagpo.learning.batch import Row
from gagpo.objectives.imitation import Distillation

TRIES = 4  # of one request, the first included
PAUSE = 0.5  # seconds before the second try; twice as long before each further one
TOKEN_BYTES, ANSWER_BYTES = 1024, 1 << 16  # most bytes of an answer: of each token asked about, and of all the rest
HIGHEST = 1e-3  # log-probability: rounding may lift one above 0
LOWEST = -9999.0  # vLLM's sign for a probability of 0


class TeacherFailed(GagpoError, RuntimeError):
    """A served teacher gave no answer, or none that can be learned from; the message names its address."""


class ServedTeacher:
    """The model at ``chosen.teacher``, the address of a vLLM server. model: as the server calls it.

    Raises :class:`TeacherFailed` where nobody answers there.
    """

    def __init__(self, chosen: Distillation):
        self.chosen, self.url = chosen, chosen.teacher.rstrip("/").removesuffix("/v1")
        about = asyncio.run(self._about())
        self.model = str(about["id"])
        self.tokenizer = chosen.tokenizer or str(about.get("root") or self.model)

    def logprobs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Of each row the log-probabilities of its response tokens at temperature 1, float64[K]."""
        return asyncio.run(self._all(rows))

    async def _all(self, rows: Sequence[Row]) -> list[np.ndarray]:
        limit = asyncio.Semaphore(self.chosen.concurrency)
        http = open_http(proxies=False)

        async def judged(row: Row) -> np.ndarray:
            async with limit:
                return await self._row(http, row)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(judged(row)) for row in rows]
        except BaseExceptionGroup as errors:  # the first one's words are enough
            raise errors.exceptions[0] from None
        finally:
            await http.aclose()
        return [task.result() for task in tasks]

    async def _row(self, http: Any, row: Row) -> np.ndarray:
        ids = row.ids.tolist()
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        most = ANSWER_BYTES + TOKEN_BYTES * len(ids)
        answer = await self._asked(http, "POST", "/v1/completions", json.dumps(body).encode(), most)
        try:
            (choice,) = answer["choices"]
            told = choice["prompt_logprobs"]
            if not isinstance(told, list) or len(told) != len(ids):
                raise ValueError(f"it tells of {len(told or [])} tokens, and {len(ids)} were asked about")
            return np.asarray([_logprob(told[place], ids[place]) for place in row.place_K.tolist()], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise TeacherFailed(
                f"the teacher at {self.url} answers otherwise than vLLM: {error}; it has to give prompt_logprobs"
            ) from None

    async def _about(self) -> dict[str, Any]:
        """What the server says of its first model."""
        http = open_http(proxies=False)
        try:
            listed = await self._asked(http, "GET", "/v1/models", None, ANSWER_BYTES)
            about = listed["data"][0]
            if not isinstance(about["id"], str):
                raise TypeError("a model without a name")
            return dict(about)
        except (KeyError, IndexError, TypeError) as error:
            raise TeacherFailed(f"{self.url}/v1/models lists no model: {error}") from None
        finally:
            await http.aclose()

    async def _asked(self, http: Any, method: str, path: str, body: bytes | None, most: int) -> dict[str, Any]:
        """The JSON object that answers, after up to ``TRIES`` tries; what the server refuses is not asked again."""
        key = os.environ.get(self.chosen.key_variable, "")
        headers = {"authorization": f"Bearer {key}"} if key else None
        reason = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE * 2 ** (number - 1))
            try:
                reply = await exchange(
                    http, method, self.url + path, body, deadline=self.chosen.deadline, most=most, headers=headers
                )
            except ExchangeFailed as error:
                reason = str(error)
                continue
            if reply.status == 200:
                return self._object(reply, path)
            reason = f"{self.url}{path} says {reply.status}: {reply.said}"
            if 400 <= reply.status < 500 and reply.status not in (408, 429):
                break
        raise TeacherFailed(f"the teacher does not answer: {reason}")

    def _object(self, reply: Reply, path: str) -> dict[str, Any]:
        try:
            found = json.loads(reply.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise TeacherFailed(f"{self.url}{path} answered with no JSON object: {reply.said[:80]!r}")
        return found


def _logprob(told: object, token: int) -> float:
    """What one entry of ``prompt_logprobs`` says of the token that stood there."""
    if not isinstance(told, dict) or str(token) not in told:
        raise ValueError(f"nothing is told of token {token}")
    entry = told[str(token)]
    value = entry["logprob"] if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not LOWEST <= value <= HIGHEST:
        raise ValueError(f"{value!r:.40} is no log-probability")
    return min(float(value), 0.0)
