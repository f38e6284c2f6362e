"""What a model reads and writes in one episode, turn by turn, without the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gagpo.agents.context import Context
from gagpo.agents.episodes import Turn
from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import TextEnv
from gagpo.envs.pool.wire import describe

FIXED = "look"  # the answer where nothing else is known


@dataclass(frozen=True)
class PreviewedTurn:
    """One turn of a preview.

    read: the text of the prompt, with its control tokens; of a prompt that extends the last one, what is new.
    known: tokens of the prompt that were read or written before.
    prompt: tokens of the prompt.
    written: the text of the response, which is trained on.
    response: tokens of the response.
    source: where the response comes from.
    turn: what the parser reads from it.
    """

    read: str
    known: int
    prompt: int
    written: str
    response: int
    source: str
    turn: Turn


def preview(
    env: TextEnv, context: Context, task: str, turns: int, answer: str | None = None
) -> Iterator[PreviewedTurn]:
    """Play an episode of ``task`` for at most ``turns`` turns.

    The answers are those of the environment's expert, else its first admissible action, else ``look``.

    answer: the response of every turn instead.

    Raises: InvalidArgument if the environment fails.
    """
    played: list[Turn] = []
    before = np.zeros(0, np.int32)
    with _naming(env, task):
        observation, info = env.reset(seed=0, options={"task": task})
    while len(played) < turns:
        text, source = (answer, "the given answer") if answer is not None else _answer(context, info)
        prompt_ids = context.prompt(played, observation, info.get("admissible_actions"))
        response_ids = context.response(text)
        turn = context.turn(response_ids)
        turn.observation, turn.prompt_ids, turn.response_ids = observation, prompt_ids, response_ids
        extends = np.array_equal(prompt_ids[: len(before)], before)
        known = len(before) if extends else 0
        yield PreviewedTurn(
            context.tokenizer.decode(prompt_ids[known:]), known, len(prompt_ids),
            context.tokenizer.decode(response_ids), len(response_ids), source, turn,
        )  # fmt: skip
        played.append(turn)
        before = np.concatenate([prompt_ids, response_ids])
        for action in [call.action for call in turn.calls] or [turn.action]:
            with _naming(env, task):
                observation, _, terminated, truncated, info = env.step(action)
            observation = turn.answer(observation) if turn.calls else observation
            if terminated or truncated:
                return


@contextmanager
def _naming(env: TextEnv, task: str) -> Iterator[None]:
    """Report an error of the environment as its own."""
    try:
        yield
    except Exception as error:  # an environment may fail in any way
        raise InvalidArgument(f"{type(env).__name__} fails in task {task!r:.80}: {describe(error)}") from None


def _answer(context: Context, info: dict[str, Any]) -> tuple[str, str]:
    """The response, and where it comes from."""
    for action, source in (
        (info.get("expert_action"), "the environment's expert"),
        (next(iter(info.get("admissible_actions") or ()), None), "the first admissible action"),
        (FIXED, f"the fixed answer {FIXED!r}, since the environment offers no action"),
    ):
        if isinstance(action, str):
            return context.phrasing.write(Turn.acting(action)), source
    return "", ""
