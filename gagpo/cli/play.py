"""The command ``play``: a person or a model acts in an environment."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from gagpo.base import signals
from gagpo.base.options import Flag, Options
from gagpo.cli.field_options import request_values, with_field_options
from gagpo.cli.options import Json, print_json, say

if TYPE_CHECKING:
    from gagpo.agents.context import Context
    from gagpo.cli.person import PersonAgent, WatchedAgent
    from gagpo.data import Episode
    from gagpo.envs.base import TextEnv

HELP = "? lists the actions, Ctrl-D ends the episode"
HELP_EXPERT = "? lists the actions, ! takes the expert's, Ctrl-D ends the episode"


class PlayRequest(Options):
    """One episode of a person. Fields are the options of ``gagpo play``, their descriptions its help."""

    environment: Annotated[str, Flag()] = Field(
        description="Environment id (gagpo/ALFWorld-v0, module:Name-v0), the URL of an OpenEnv server, or a config."
    )
    kwargs: Annotated[Mapping[str, object] | None, Flag("--kwargs", "-k")] = Field(
        None, description="Environment argument, name=value (YAML); repeat for more."
    )
    split: Annotated[str | None, Flag()] = Field(None, description="Split of the task; by default the first.")
    task: Annotated[str | None, Flag()] = Field(None, description="Id of the task; by default the seed draws one.")
    seed: Annotated[int | None, Flag()] = Field(None, ge=0, description="Seed of the episode; by default random.")
    expert: Annotated[bool, Flag("--expert")] = Field(False, description="Show the expert's next action.")
    model: Annotated[str | None, Flag()] = Field(
        None, description="Show the tokens that this model would read and write."
    )
    watch: Annotated[bool, Flag("--watch")] = Field(False, description="With --model: let the model act.")
    trust_remote_code: Annotated[bool, Flag("--trust-remote-code")] = Field(
        False, description="Run code that comes with the model or run; read it first."
    )
    prompt: Annotated[str | None, Flag()] = Field(
        None, description="With --model: a shipped prompt (plain, tags, ...) or a YAML file."
    )


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(play)


@with_field_options(PlayRequest)
def play(*, as_json: Json = False, **options: object) -> None:
    """Act in an environment: type actions at the prompt, or send them through a pipe, one per line.

    ? lists the admissible actions or tools, ?WORD those that contain WORD. \\? sends a line that begins with ?.
    """
    request = PlayRequest(**request_values(PlayRequest, options))
    _require_fitting(request)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a pipe may hold bytes that are not UTF-8
    with _watched(request) if request.watch else nullcontext(_prepare(request)) as session:
        status = session.run()
    say("", *session.verdict())
    if as_json:
        print_json(session.record())
    if status:
        raise typer.Exit(status)


def _require_fitting(request: PlayRequest) -> None:
    """Raise InvalidArgument for options that do not go together."""
    from gagpo.base.errors import InvalidArgument

    if request.model is None:
        for name, value in (("--prompt", request.prompt), ("--watch", request.watch or None)):
            if value is not None:
                raise InvalidArgument(f"{name} is for a model", key=name, advice="add --model MODEL")
    if request.watch and request.expert:
        raise InvalidArgument(
            "--expert shows a person what to do", key="--expert", advice="leave out --expert or --watch"
        )


@dataclass
class PlaySession:
    """An episode of a person or a model in an environment.

    kwargs: of the environment.
    words: options of the command that starts the same episode again.
    ending: how the episode ended.
    """

    env_id: str
    kwargs: dict[str, Any]
    task: str
    seed: int
    words: list[str]
    agent: PersonAgent | WatchedAgent
    ending: str = ""
    episode: Episode | None = field(default=None, repr=False)

    def run(self) -> int:
        """Run the episode to its end; returns the exit status of the command."""
        from gagpo.agents.rollout import Job, rollout
        from gagpo.cli.person import EndOfInput, show, show_result
        from gagpo.envs.pool.opening import open_pool

        job = Job(self.task, 0, 0, self.seed, self.seed)
        status = 0
        try:
            # In a process of its own, so that a step that hangs ends at its deadline.
            with open_pool(self.env_id, self.kwargs, workers=1) as pool:
                ((self.episode,), _) = rollout(self.agent, pool, [job])
        except EndOfInput:
            self.ending = "by the end of the input"
        except KeyboardInterrupt:
            signals.accept()
            say("")
            self.ending = "by Ctrl-C"
            status = 130
        if self.episode is None:  # as far as it came
            self.episode = self.agent.state.episode if self.agent.state else None
            return status
        if self.episode.outcome == "failed":
            self.ending = f"the environment failed: {self.episode.info.get('error')}"
            return 1
        if self.episode.turns:
            show_result(self.episode.turns[-1])
        show(self.episode.end_observation or "")
        self.ending = {"terminated": "by the environment", "truncated": "at the turn limit"}[self.episode.outcome]
        return 0

    def verdict(self) -> list[str]:
        """The outcome as lines of text."""
        from gagpo.base.tables import facts, text_width

        record = self.record()
        invalid = f", {record['invalid']} invalid" if record["invalid"] else ""
        pairs = [
            ("success", "yes" if record["success"] else "no"),
            ("reward", f"{record['reward']:g}"),
            ("turns", f"{record['turns']}{invalid}"),
            ("ended", self.ending),
        ]
        if "tokens" in record:
            read = record["tokens"][-1]["prompt_tokens"]
            written = sum(turn["response_tokens"] for turn in record["tokens"])
            pairs.append(("tokens", f"last prompt {read}, responses {written}"))
        return [*facts(pairs, text_width(100)), f"again: {join(['gagpo', 'play', *self.words])}"]

    def record(self) -> dict[str, Any]:
        """The outcome as JSON-ready values."""
        turns = self.episode.turns if self.episode else []
        record = {
            "environment": self.env_id,
            "task": self.task,
            "seed": self.seed,
            "success": bool(self.episode and self.episode.success),
            "reward": float(sum(turn.reward for turn in turns)),
            "turns": len(turns),
            "invalid": sum(not turn.valid for turn in turns),
            "ended": self.ending,
            "actions": [turn.action for turn in turns],
        }
        if any(len(turn.prompt_ids) for turn in turns):
            record["tokens"] = [
                {
                    "prompt_tokens": len(turn.prompt_ids),
                    "response_tokens": len(turn.response_ids),
                    "prompt_ids": turn.prompt_ids.tolist(),
                    "response_ids": turn.response_ids.tolist(),
                }
                for turn in turns
            ]
        return record


def _prepare(request: PlayRequest) -> PlaySession:
    """Build the environment once to choose the task, and print where the person is."""
    from gagpo.agents.setup import make_env
    from gagpo.base.errors import InvalidArgument
    from gagpo.cli.person import PersonAgent, show
    from gagpo.envs.base import TextEnv
    from gagpo.envs.tools import tools_of

    env_id, kwargs, context_options = _environment(request)
    env = make_env(env_id, kwargs)
    try:
        if request.expert and not isinstance(env, TextEnv):
            raise InvalidArgument("has no expert", key="--expert", where=env_id, advice="leave --expert out")
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        task = _task(env, request, seed)
        tools = tools_of(env)
        context = None if request.model is None else _context(request, env, context_options)
        instructions = str(getattr(env, "instructions", ""))
        multiline = bool(getattr(env, "multiline", False))
    finally:
        env.close()
    if request.expert:
        kwargs = {"expert": True, **kwargs}
    say(f"{env_id}, task {task}, seed {seed}", HELP_EXPERT if request.expert else HELP)
    if multiline:
        say("a backslash at the end of a line continues the action on the next")
    if instructions:
        show(instructions)
    say("")
    agent = PersonAgent(tools, multiline, request.expert, context)
    return PlaySession(env_id, kwargs, task, seed, _words(request, task, seed), agent)


@contextmanager
def _watched(request: PlayRequest) -> Iterator[PlaySession]:
    """The session of a model that acts, in the environment as the model was trained in it."""
    from gagpo.agents.setup import make_env
    from gagpo.cli.person import WatchedAgent
    from gagpo.eval.chat import acting_agent
    from gagpo.eval.models import request_of
    from gagpo.settings import shipped_configs

    name = request.environment
    is_config = name.endswith((".yaml", ".yml")) or name in shipped_configs()
    arguments = {"like": name} if is_config else {"environment": name}
    context = {} if request.prompt is None else {"context": {"prompt": request.prompt}}
    options = {"kwargs": request.kwargs, "trust_remote_code": request.trust_remote_code}
    conditions, agent = acting_agent(request_of(request.model or "", **arguments, **context, **options))
    try:
        env = make_env(conditions.environment, conditions.kwargs, warn_of=())
        try:
            seed = secrets.randbelow(2**31) if request.seed is None else request.seed
            task = _task(env, request, seed)
        finally:
            env.close()
        say(f"{conditions.environment}, task {task}, seed {seed}, {request.model} acts", "")
        command = [*_words(request, task, seed), "--watch"]
        yield PlaySession(conditions.environment, conditions.kwargs, task, seed, command, WatchedAgent(agent))
    finally:
        agent.engine.close()


def _environment(request: PlayRequest) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Id and arguments of the environment, and how a config prompts its model."""
    from gagpo.settings import load_stored, shipped_configs
    from gagpo.settings.interface import interface_of_starter

    name = request.environment
    kwargs = dict(request.kwargs or {})
    context: dict[str, Any] = {}
    if name.endswith((".yaml", ".yml")) or name in shipped_configs():
        row = load_stored(name).only_environment
        name = row.environment.id
        kwargs = {**row.environment.kwargs, **kwargs}
        context = dict(row.context)
    return name, {**interface_of_starter(request.model, name), **kwargs}, context


def _context(request: PlayRequest, env: TextEnv, options: dict[str, Any]) -> Context:
    """How the model is prompted."""
    from gagpo.agents.setup import make_context
    from gagpo.model.loading import load_tokenizer
    from gagpo.settings.machine import require_model

    assert request.model is not None
    require_model(request.model)
    if request.prompt is not None:
        options = {**options, "prompt": request.prompt}
    return make_context(load_tokenizer(request.model), env, **options)


def _task(env: TextEnv, request: PlayRequest, seed: int) -> str:
    """The id of the requested task, of any split unless one is named; by default the one that the seed draws.

    Raises: UnknownTask with the nearest ids.
    """
    import numpy as np

    from gagpo.agents.setup import tasks_of
    from gagpo.base.errors import GagpoError

    first = request.split or str(getattr(env, "split", "train"))
    tasks = tasks_of(env, first)
    if request.task is None:
        ids = tasks.require().ids
        return str(ids[int(np.random.default_rng(seed).integers(len(ids)))])
    for split in () if request.split else getattr(env, "splits", ()):
        with suppress(GagpoError):  # a split whose files are missing hides no task of another one
            if request.task in env.tasks(split):
                return request.task
    return str(tasks[request.task].id)


def _words(request: PlayRequest, task: str, seed: int) -> list[str]:
    """The arguments of a command that starts this episode again."""
    import json

    command = [request.environment]
    for name, value in (request.kwargs or {}).items():
        command += ["-k", f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}"]
    options = {"--task": task, "--seed": str(seed), "--model": request.model, "--prompt": request.prompt}
    for name, text in options.items():
        command += [name, text] if text is not None else []
    return [*command, *(["--expert"] if request.expert else [])]
