"""Evaluating whatever can act: a run, a model folder, a hub model, the random agent or the expert."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gagpo.agents.agent import Agent, ExpertAgent, RandomAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.episodes import write_episodes
from gagpo.agents.model import commit_of, load_model, load_tokenizer
from gagpo.agents.setup import language_agent, make_engine, make_world, tasks_of
from gagpo.agents.starters import find, folder_of, is_starter
from gagpo.envs import durable
from gagpo.envs.lookup import playing
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel
from gagpo.eval.evaluate import evaluate as play_panel
from gagpo.eval.journal import Journal, weights_identity
from gagpo.eval.results import EvalResult
from gagpo.settings import ContextSettings, EngineSettings, RunSettings, SettingsError, load
from gagpo.training import keeping
from gagpo.training.run_folder import RunFolder

TEMPERATURE = 0.4
MAX_TOKENS = 512


def evaluate(
    model: str,
    *,
    environment: str | None = None,
    split: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    like: str | Path | None = None,
    tasks: int | None = None,
    tries: int = 1,
    temperature: float | None = None,
    max_tokens: int | None = None,
    style: str | None = None,
    history: int | str | None = None,
    admissible: bool | None = None,
    seed: int = 0,
    workers: int = 2,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    episodes: Path | None = None,
    journals: Path | None = None,
    quiet: bool = False,
) -> EvalResult:
    """Evaluate ``model`` on a split of an environment.

    model: a run folder (``runs/X``; ``runs/X@20`` for the checkpoint of iteration 20, ``runs/X@best`` for the one that
    training itself found best), a model folder or hub name, ``random`` or ``expert``. What is not given comes from the
    run, else from the run or config ``like``, or is the default: temperature 0.4, 512 tokens, the plain style, the full
    conversation.

    revision: branch, tag or commit of a hub model; the result names the commit. trust_remote_code: run its own code.
    seed: other episodes of the same tasks. episodes: a file to write the episodes to, one JSON object a line.
    journals: a folder in which every episode is kept as it ends: the same call goes on where it was killed. Other
    weights, another panel or other settings never reuse it.

    Raises :class:`gagpo.GagpoError` for what the caller can mend, before anything is played.
    """
    run, which = _run_of(model)
    other = _settings_like(like) if like is not None else run
    environment = environment or (other.environment.id if other else None)
    if environment is None:
        raise SettingsError("name the environment with --env, or a run to take it from with --like")
    own = other.environment.kwargs if other and other.environment.id == environment else {}
    split = split or (other.evaluation.splits[0] if other else None)
    arguments = playing(environment, {**own, **(kwargs or {})}, split)
    world = make_world(environment, arguments)
    if like is not None and other is not None and tasks is None:
        tasks = other.evaluation.tasks
    panel = choose_panel(tasks_of(world, split or world.splits[-1]), tasks)
    if temperature is None:
        temperature = other.evaluation.temperature if other else TEMPERATURE
    speech = _Speech.of(run or other, {"style": style, "history": history, "admissible": admissible}, max_tokens)
    source = _Source("")
    agent: Agent
    if model == "random":
        agent = RandomAgent()
        if hasattr(world, "sample_action"):  # for worlds that do not list their actions
            arguments = {**arguments, "expert": "random"}
    elif model == "expert":
        agent, arguments = ExpertAgent(), {**arguments, "expert": True}
        require_expert(environment, arguments, panel.ids[0])
    else:
        source = _Source.of(model, run, which, other, revision, trust_remote_code)
        agent = _language_agent(source, run, world, temperature, speech, device, other)
    material = world.material(arguments)
    key = {
        "model": model,
        "weights": source.identity,
        "environment": environment,
        "kwargs": material,
        "split": panel.split,
        "panel": panel.hash,
        "seed": seed,
        "temperature": temperature,
        "speech": {**speech.context.model_dump(mode="json"), "max_tokens": speech.max_tokens},
    }
    with (
        Journal(journals, key) if journals is not None else nullcontext() as journal,
        Pool(environment, arguments, workers=workers) as pool,
    ):
        result, played = play_panel(
            agent,
            pool,
            panel,
            environment=environment,
            kwargs=material,
            model=f"{model}@{source.commit[:12]}" if source.commit else model,
            temperature=None if model in ("random", "expert") else temperature,
            tries=tries,
            seed=seed,
            quiet=quiet,
            journal=journal,
        )
    if episodes is not None:
        with durable.replacing(episodes) as temporary:
            write_episodes(temporary, played)
    return result


@dataclass(frozen=True)
class _Speech:
    """How a model is spoken to, and how much it may answer."""

    context: ContextSettings
    max_tokens: int

    @classmethod
    def of(cls, run: RunSettings | None, context: Mapping[str, Any], max_tokens: int | None) -> _Speech:
        """That of ``run``, with what is given (and not None) in its place."""
        base = run.context.model_dump() if run else {}
        given = {name: value for name, value in context.items() if value is not None}
        try:
            own = ContextSettings.model_validate({**base, **given})
        except ValidationError as error:
            raise SettingsError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return cls(own, max_tokens or (run.rollout.max_tokens if run else MAX_TOKENS))


def require_expert(environment: str, kwargs: Mapping[str, Any], task: str) -> None:
    """SettingsError unless the environment, built with an expert, says what the expert would do first."""
    world = make_world(environment, kwargs)
    try:
        _, info = world.reset(seed=0, options={"task": task})
    finally:
        world.close()
    if info.get("expert_action") is None:
        raise SettingsError(f"{environment} has no expert: evaluate `random` or a model there")


def require_writable(path: Path | None) -> None:
    """OSError naming ``path`` when it cannot be written; better before an hour of playing than after it."""
    if path is None:
        return
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".{path.name}.probe")
    probe.write_text("")
    probe.unlink()


def panel_like(like: str | Path | None, kwargs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Environment, ``kwargs``, split, tasks and way of asking for :func:`gagpo.evaluation.served.evaluate_api`.

    What is in ``given`` goes first, then what the run or config ``like`` says. Raises SettingsError where neither names
    an environment.
    """
    if like is None:
        if "environment" not in given:
            raise SettingsError("name the environment with --env, or a run to take it from with --like")
        return {**given, "kwargs": dict(kwargs)}
    run = _settings_like(like)
    context = run.context
    taken: dict[str, Any] = {
        "environment": run.environment.id,
        "split": run.evaluation.splits[0],
        "tasks": run.evaluation.tasks,
        "temperature": run.evaluation.temperature,
        "max_tokens": run.rollout.max_tokens,
        "style": context.style,
        "history": context.history,
        "admissible": context.admissible,
    }
    own = run.environment.kwargs if given.get("environment", run.environment.id) == run.environment.id else {}
    return {**taken, **given, "kwargs": {**own, **kwargs}}


def _settings_like(like: str | Path) -> RunSettings:
    """The settings of a run folder, of a config file, or of a shipped config."""
    folder = Path(like)
    return RunFolder.open(folder).settings if (folder / "config.yaml").is_file() else load(like)


def _run_of(model: str) -> tuple[RunSettings | None, str | None]:
    """The settings of the run that ``model`` names, if it names one, and which checkpoint is asked for, if one was."""
    if is_starter(model):
        return load(find(model).settings), None
    path, which = keeping.named(Path(model))
    if not (path / "config.yaml").is_file():
        return None, None
    return RunFolder.open(path).settings, which


@dataclass(frozen=True)
class _Source:
    """Where weights are loaded from. commit: of a hub model; empty name: a player without weights."""

    name: str
    commit: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def of(
        cls,
        model: str,
        run: RunSettings | None,
        which: str | None,
        like: RunSettings | None,
        revision: str | None,
        trust_remote_code: bool,
    ) -> _Source:
        """That of a checkpoint, a starter, a folder or a hub model; ``like`` knows the revision of its own model."""
        if run is not None:
            if revision is not None:
                raise SettingsError(f"{model} is a run, which has no revision {revision!r}: name a checkpoint with @")
            return cls(_weights(model, run, which), None, run.trust_remote_code or trust_remote_code)
        if like is not None and like.model == model:
            revision, trust_remote_code = revision or like.revision, trust_remote_code or like.trust_remote_code
        return cls(model, commit_of(model, revision), trust_remote_code)

    @property
    def identity(self) -> str:
        """What tells these weights from any others; empty for players without weights."""
        folder = Path(self.name)
        return weights_identity(folder) if self.name and folder.is_dir() else self.commit or ""


def _weights(model: str, run: RunSettings, which: str | None) -> str:
    """The model folder of a starter, or of a run's checkpoint."""
    if is_starter(model):
        return folder_of(model)
    path = keeping.named(Path(model))[0]
    return keeping.chosen(path, which, run.training).model


def _language_agent(
    source: _Source,
    run: RunSettings | None,
    world: Any,
    temperature: float,
    speech: _Speech,
    device: str | None,
    like: RunSettings | None,
) -> Agent:
    trust = source.trust_remote_code
    settings = run or like
    sampler = settings.engine if settings else EngineSettings()
    engine = make_engine(
        sampler.name,
        load_model(
            source.name,
            sampler.dtype,
            device or (run.device if run else "cpu"),
            trust_remote_code=trust,
            revision=source.commit,
        ),
        load_tokenizer(source.name, source.commit, trust_remote_code=trust),
        **sampler.arguments(),
    )
    context = speech.context
    return language_agent(
        engine,
        world,
        Sampling(temperature, speech.max_tokens),
        style=context.style,
        history=context.history,
        admissible=context.admissible,
        template=context.template,
    )
