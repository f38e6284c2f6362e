"""Evaluating whatever can act: a run, a model folder, a hub model, the random agent or the expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gagpo.agents.agent import Agent, ExpertAgent, RandomAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.setup import language_agent, make_engine, make_world
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel, evaluate
from gagpo.eval.results import EvalResult
from gagpo.settings import RunSettings, SettingsError
from gagpo.training import checkpoint as checkpoints
from gagpo.training.run_folder import RunFolder


def measure(
    model: str,
    *,
    environment: str | None = None,
    split: str | None = None,
    kwargs: dict[str, Any] | None = None,
    tasks: int | None = None,
    tries: int = 1,
    temperature: float = 0.4,
    max_tokens: int | None = None,
    style: str | None = None,
    history: int | str | None = None,
    workers: int = 2,
    device: str | None = None,
    quiet: bool = False,
) -> EvalResult:
    """Evaluate ``model`` on a split of an environment; a run folder supplies every value that is not given."""
    run = _settings_of(model)
    environment = environment or (run.environment.id if run else None)
    if environment is None:
        raise SettingsError("name the environment with --env (only a run folder knows its own)")
    own = run.environment.kwargs if run and run.environment.id == environment else {}
    arguments = {**own, **(kwargs or {})}
    world = make_world(environment, arguments)
    panel_split = split or (run.evaluation.splits[0] if run else world.splits[-1])
    panel = choose_panel(world.tasks(panel_split), tasks)
    agent: Agent
    if model == "random":
        agent = RandomAgent()
    elif model == "expert":
        agent, arguments = ExpertAgent(), {**arguments, "expert": True}
    else:
        agent = _language_agent(model, run, world, temperature, max_tokens, style, history, device)
    with Pool(environment, arguments, workers=workers) as pool:
        result, _ = evaluate(
            agent,
            pool,
            panel,
            environment=environment,
            kwargs=world.material(arguments),
            model=model,
            temperature=temperature,
            tries=tries,
            quiet=quiet,
        )
    return result


def _settings_of(model: str) -> RunSettings | None:
    path = Path(model)
    return RunFolder.open(path).settings if (path / "config.yaml").is_file() else None


def _language_agent(
    model: str,
    run: RunSettings | None,
    world: Any,
    temperature: float,
    max_tokens: int | None,
    style: str | None,
    history: int | str | None,
    device: str | None,
) -> Agent:
    name = model
    if run is not None:
        saved = checkpoints.latest(Path(model) / "checkpoints")
        if saved is None:
            raise SettingsError(f"run {model} has no checkpoint yet; evaluate its model {run.model!r} instead")
        name = saved.model
    dtype = run.dtype if run else "float32"
    engine = make_engine(
        run.engine if run else "transformers",
        load_model(name, dtype, device or (run.device if run else "cpu")),
        load_tokenizer(name),
    )
    sampling = Sampling(temperature, max_tokens or (run.rollout.max_tokens if run else 512))
    context = run.context if run else None
    return language_agent(
        engine,
        world,
        sampling,
        style=style or (context.style if context else "plain"),
        history=history if history is not None else (context.history if context else "full"),
        admissible=context.admissible if context else False,
    )
