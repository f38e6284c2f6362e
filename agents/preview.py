"""What a model reads and writes in one episode, without the model.

It uses the same context as training, so what it prints is what a run reads, token for token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gagpo.agents.context import Context
from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument, is_termination
from gagpo.data import Turn
from gagpo.envs.base import TextEnv
from gagpo.envs.pool.wire import describe
from gagpo.envs.tools import separate

FIXED = "look"  # the answer where nothing else is known


def make_with_expert(env_id: str, kwargs: Mapping[str, Any]) -> TextEnv:
    """The environment, with its expert if it has one."""
    env = make_env(env_id, kwargs)
    if isinstance(env, TextEnv) and "expert" not in kwargs:  # an environment of another base may take no such argument
        env.close()
        env = make_env(env_id, {**kwargs, "expert": True})
    return env


def preview(env: TextEnv, context: Context, task: str, answer: str | None = None) -> Iterator[tuple[Turn, str]]:
    """Play an episode of ``task``; yields each turn with its tokens, and where its response comes from.

    Responses are those of the environment's expert, else its first admissible action, else ``look``.

    answer: the response of every turn instead.

    Raises: InvalidArgument if the environment fails.
    """
    turns: list[Turn] = []
    with _naming(env, task):
        observation, info = env.reset(seed=0, options={"task": task})
    over = False
    while not over:
        action, source = _choice(info)
        text = context.action_format.write(Turn.of_actions(separate(action))) if answer is None else answer
        response_ids = context.response(text)
        prompt_ids = context.prompt(turns, observation, info.get("admissible_actions"))
        turn = context.turn(response_ids)
        turn = replace(turn, observation=observation, prompt_ids=prompt_ids, response_ids=response_ids)
        yield turn, source if answer is None else "the given answer"
        turns.append(turn)
        for action in [call.action for call in turn.calls] or [turn.action]:
            with _naming(env, task):
                observation, _, terminated, truncated, info = env.step(action)
            if turn.calls:
                turn = turns[-1] = turn.with_answer(observation)
                observation = turn.answers
            over = terminated or truncated
            if over:
                break


def _choice(info: Mapping[str, Any]) -> tuple[str, str]:
    """The action, and where it comes from."""
    if isinstance(action := info.get("expert_action"), str):
        return action, "the environment's expert"
    if actions := info.get("admissible_actions"):
        return str(actions[0]), "the first admissible action"
    return FIXED, f"the fixed answer {FIXED!r}, since the environment offers no action"


@contextmanager
def _naming(env: TextEnv, task: str) -> Iterator[None]:
    """Report an error of the environment as its own."""
    try:
        yield
    except (Exception, SystemExit) as error:  # an environment may fail in any way
        if is_termination(error):
            raise
        raise InvalidArgument(f"{type(env).__name__} fails in task {task!r:.80}: {describe(error)}") from None
