"""Evaluating whatever can act: a run, a model folder, a hub model, the random agent or the expert."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gagpo.agents.agent import Agent, ExpertAgent, RandomAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.episodes import write_episodes
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.setup import language_agent, make_engine, make_world, tasks_of
from gagpo.envs import durable
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel
from gagpo.eval.evaluate import evaluate as play_panel
from gagpo.eval.results import EvalResult
from gagpo.settings import ContextSettings, RunSettings, SettingsError
from gagpo.training import checkpoint as checkpoints
from gagpo.training.run_folder import RunFolder

TEMPERATURE = 0.4
MAX_TOKENS = 512
_RUN_AT = re.compile(r"(?P<run>.+)@(?P<iteration>\d+)")


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
    seed: int = 0,
    workers: int = 2,
    device: str | None = None,
    episodes: Path | None = None,
    quiet: bool = False,
) -> EvalResult:
    """Evaluate ``model`` on a split of an environment.

    model: a run folder (``runs/X``; ``runs/X@20`` for the checkpoint of iteration 20), a model folder or hub name,
    ``random`` or ``expert``. What is not given comes from the run, or from the run that ``like`` names, or is the
    default: temperature 0.4, 512 tokens, the plain style, the full conversation.

    seed: other episodes of the same tasks. episodes: a file to write the episodes to, one JSON object a line.

    Raises :class:`gagpo.GagpoError` for what the caller can mend, before anything is played.
    """
    run, iteration = _run_of(model)
    other = RunFolder.open(Path(like)).settings if like is not None else run
    environment = environment or (other.environment.id if other else None)
    if environment is None:
        raise SettingsError("name the environment with --env, or a run to take it from with --like")
    own = other.environment.kwargs if other and other.environment.id == environment else {}
    arguments = {**own, **(kwargs or {})}
    world = make_world(environment, arguments)
    if like is not None and other is not None and tasks is None:
        tasks = other.evaluation.tasks
    panel_split = split or (other.evaluation.splits[0] if other else world.splits[-1])
    panel = choose_panel(tasks_of(world, panel_split), tasks)
    if temperature is None:
        temperature = other.evaluation.temperature if other else TEMPERATURE
    speech = _Speech.of(run or other, style, history, max_tokens)
    agent: Agent
    if model == "random":
        agent = RandomAgent()
    elif model == "expert":
        agent, arguments = ExpertAgent(), {**arguments, "expert": True}
        require_expert(environment, arguments, panel.ids[0])
    else:
        agent = _language_agent(model, run, iteration, world, temperature, speech, device)
    with Pool(environment, arguments, workers=workers) as pool:
        result, played = play_panel(
            agent,
            pool,
            panel,
            environment=environment,
            kwargs=world.material(arguments),
            model=model,
            temperature=None if model in ("random", "expert") else temperature,
            tries=tries,
            seed=seed,
            quiet=quiet,
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
    def of(
        cls, run: RunSettings | None, style: str | None, history: int | str | None, max_tokens: int | None
    ) -> _Speech:
        """That of ``run``, with what is given in its place."""
        base = run.context.model_dump() if run else {}
        given = {name: value for name, value in (("style", style), ("history", history)) if value is not None}
        try:
            context = ContextSettings.model_validate({**base, **given})
        except ValidationError as error:
            raise SettingsError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return cls(context, max_tokens or (run.rollout.max_tokens if run else MAX_TOKENS))


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


def _run_of(model: str) -> tuple[RunSettings | None, int | None]:
    """The settings of the run that ``model`` names, if it names one, and the iteration asked for, if one was."""
    match = _RUN_AT.fullmatch(model)
    path = Path(match["run"]) if match and (Path(match["run"]) / "config.yaml").is_file() else Path(model)
    if not (path / "config.yaml").is_file():
        return None, None
    return RunFolder.open(path).settings, int(match["iteration"]) if match and str(path) == match["run"] else None


def _weights(model: str, run: RunSettings, iteration: int | None) -> str:
    """The model folder of a run's checkpoint: the last one, or that of ``iteration``."""
    path = Path(model if iteration is None else model.rpartition("@")[0])
    found = checkpoints.checkpoints(path / "checkpoints")
    if not found:
        raise SettingsError(f"run {path} has no checkpoint yet; evaluate its model {run.model!r} instead")
    if iteration is None:
        chosen = found[-1]
    else:
        kept = {one.iteration: one for one in found}
        if iteration not in kept:
            raise SettingsError(f"run {path} keeps no checkpoint of iteration {iteration}; it has {sorted(kept)}")
        chosen = kept[iteration]
    chosen.verify()
    return chosen.model


def _language_agent(
    model: str,
    run: RunSettings | None,
    iteration: int | None,
    world: Any,
    temperature: float,
    speech: _Speech,
    device: str | None,
) -> Agent:
    name = _weights(model, run, iteration) if run is not None else model
    engine = make_engine(
        run.engine if run else "transformers",
        load_model(name, run.dtype if run else "float32", device or (run.device if run else "cpu")),
        load_tokenizer(name),
    )
    context = speech.context
    return language_agent(
        engine,
        world,
        Sampling(temperature, speech.max_tokens),
        style=context.style,
        history=context.history,
        admissible=context.admissible,
    )
