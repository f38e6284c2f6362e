"""Make environments, engines and agents from names and plain values.

Settings, commands and examples build their objects here, so a run and a notebook prompt a model in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import gagpo.envs
from gagpo.agents.agent import LanguageAgent
from gagpo.agents.context import Context, Interface
from gagpo.agents.engines.base import Engine, Sampling
from gagpo.agents.engines.options import EngineInputs, EngineOptions
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import Prompt, find_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.envs.arguments import build
from gagpo.envs.tasks import unknown_split

if TYPE_CHECKING:
    import torch


def make_env(
    env_id: str, kwargs: Mapping[str, Any] | None = None, warn_of: Collection[str] | None = None
) -> gagpo.envs.TextEnv:
    """Make the environment ``env_id`` in this process, with a warning for arguments without effect.

    warn_of: the arguments to warn of, those that the user named in this command; None for all.

    Raises: InvalidArgument for an unknown id, naming known ones, and for wrong arguments.
    """
    env: gagpo.envs.TextEnv = build(env_id, kwargs).unwrapped  # type: ignore[assignment]
    idle = sorted(getattr(env, "without_effect", lambda _: frozenset())(kwargs or {}) & (kwargs or {}).keys())
    idle = [name for name in idle if warn_of is None or name in warn_of]
    if idle:
        warnings.warn(f"{env_id}: {', '.join(idle)} has no effect: the tasks are given, not generated", stacklevel=2)
    return env


def tasks_of(env: gagpo.envs.TextEnv, split: str) -> gagpo.envs.TaskSet:
    """The tasks of ``split``. Raises: InvalidArgument naming the existing splits if ``env`` has no such split."""
    splits = getattr(env, "splits", ())
    if splits and split not in splits:
        raise unknown_split(type(env).__name__, split, splits)
    return env.tasks(split)


def make_engine(options: EngineOptions | str, model: torch.nn.Module, tokenizer: Any, **inputs: Any) -> Engine:
    """The started engine with ``model``'s weights; the caller closes it.

    options: of the engine, or the name of an engine with default options; see :mod:`gagpo.agents.engines.registry`.
    inputs: further fields of :class:`gagpo.agents.engines.options.EngineInputs`, such as ``dtype``.
    """
    if isinstance(options, str):
        options = engine_options(options)
    engine = options.build(EngineInputs(model, tokenizer, **inputs))
    engine.start()
    return engine


def make_context(
    tokenizer: Any,
    env: gagpo.envs.TextEnv | None,
    *,
    prompt: Prompt | str = "plain",
    history: int | str = "full",
    admissible: bool = False,
    template: Mapping[str, Any] | None = None,
    calls: str = "auto",
) -> Context:
    """How a model is prompted in ``env``: with its instructions and tools. prompt: one, a shipped name or a file."""
    prompt_format = find_prompt(prompt) if isinstance(prompt, str) else prompt
    if getattr(env, "sends_requests", False):
        if (prompt_format.name, history, admissible) != ("plain", "full", False):
            names = "context.prompt, context.history and context.admissible"
            raise InvalidArgument(
                f"{names} have no effect on programs, which word their prompts", advice="leave them out"
            )
        return ProgramContext(tokenizer, prompt_format, template, calls)
    return Context(tokenizer, prompt_format, Interface.of(env), history, admissible, template, calls)


def language_agent(engine: Engine, env: gagpo.envs.TextEnv, sampling: Sampling, **context: Any) -> LanguageAgent:
    """A language agent for ``env``. context: options of :func:`make_context`."""
    return LanguageAgent(engine, make_context(engine.tokenizer, env, **context), sampling)
