"""Evaluate a run, a model folder, a hub model, a model behind a server, the random agent or the expert."""

from __future__ import annotations

import inspect
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.agents.agent import ExpertAgent, LanguageAgent, RandomAgent
from gagpo.agents.engines.base import Engine, Sampling
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.base import renamed
from gagpo.base.errors import InvalidArgument, is_termination
from gagpo.envs.arguments import require_arguments
from gagpo.envs.pool.wire import describe
from gagpo.eval.conditions import Conditions, conditions_of, is_run_folder, names_of, settings_like
from gagpo.eval.evaluate import EvaluatedAgent, EvaluationOutcome, PreparedEvaluation
from gagpo.eval.held_out import require_held_out
from gagpo.eval.journal import weights_identity
from gagpo.eval.request import WEIGHTLESS, EvaluationRequest
from gagpo.eval.results import EvalResult
from gagpo.eval.served import evaluate_served
from gagpo.eval.suite import requests_of
from gagpo.eval.trust import require_engine_trust, require_environment_trust
from gagpo.model.pretrained import folder_of
from gagpo.model.starters import find, is_starter
from gagpo.runs.reading import in_one_line
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import EngineSettings, RunSettings, SettingsError, load
from gagpo.settings.files import parse
from gagpo.settings.machine import require_device, require_model


def evaluate(model: str, **options: Any) -> EvalResult:
    """Evaluate a model on a split of an environment.

    model and options: the fields of :class:`gagpo.eval.request.EvaluationRequest`.

    Raises:
        GagpoError: something the caller can correct; no episode has been run.
    """
    return measure(request_of(model, **options)).result


# The options in help() and in editors, although the request declares them.
evaluate.__signature__ = inspect.signature(EvaluationRequest).replace(  # type: ignore[attr-defined]
    return_annotation=EvalResult
)


def request_of(model: str, **options: Any) -> EvaluationRequest:
    """The request; InvalidArgument in one line for an option that is wrong."""
    for name in options:
        if new := renamed.OPTIONS.get(f"--{name}"):
            raise InvalidArgument(f"{name} is renamed to {new.lstrip('-').replace('-', '_')}", key=name)
    with in_one_line():
        return EvaluationRequest(model=model, **options)


def measure(request: EvaluationRequest) -> EvaluationOutcome:
    """As :func:`evaluate`, with the episodes, the journal and the cost."""
    if request.suite is not None:
        raise InvalidArgument(
            "a suite has several results", advice="use `gagpo eval --suite`, or evaluate each task set"
        )
    sources = OptionSources.of(request)
    has_weights = not request.served and request.model not in WEIGHTLESS
    if sources.run is None and has_weights:
        require_model(request.model)
    conditions = conditions_of(request, sources.run, sources.like)
    if not request.trust_remote_code:
        require_trust(request, conditions, sources)
    require_arguments(conditions.environment, conditions.kwargs)
    if has_weights:
        require_device(device_of(request, sources.run))
    if is_starter(request.model):
        require_model(request.model)  # before games are made: its base may have to be fetched
    prepared = PreparedEvaluation.of(request, conditions, request.kwargs or {})
    if sources.run is not None:
        require_held_out(prepared.tasks, conditions.environment, sources.run)
    if request.served:
        return evaluate_served(prepared)
    return prepared.run(_evaluated_agent(prepared, sources))


def measure_all(request: EvaluationRequest) -> dict[str, EvaluationOutcome]:
    """As :func:`measure`, for every environment of a run or of ``like``, or task set of a suite, by name.

    The name of a single one is ``""``.

    A request that names an environment measures only that one. Each environment has a separate file of episodes.
    """
    if request.suite is not None:
        requests = requests_of(request)
        return {name: measure(_with_file(each, name)) for name, each in requests.items()}
    settings = None
    if not request.environment:
        sources = OptionSources.of(request)
        settings = sources.like or sources.run
    outcomes = {}
    for name in names_of(settings) if settings else []:
        outcomes[name] = measure(_with_file(request.model_copy(update={"environment": name}), name))
    return outcomes or {"": measure(request)}


def _with_file(request: EvaluationRequest, name: str) -> EvaluationRequest:
    """The request with a separate file of episodes."""
    episodes = request.episodes and file_of_environment(request.episodes, name)
    return request.model_copy(update={"episodes": episodes})


def file_of_environment(path: Path, env: str) -> Path:
    """``result.json`` as ``result.maths.json``; the path itself in a run of one environment."""
    return path.with_name(f"{path.stem}.{env}{path.suffix}") if env else path


@dataclass(frozen=True)
class OptionSources:
    """Where the options that a request leaves open come from.

    run: the settings of the run that the model names; None if it names none.
    checkpoint: of that run, as written after ``@``.
    like: the settings of the run or config that the request names.
    engine: that samples.
    """

    run: RunSettings | None
    checkpoint: str | None
    like: RunSettings | None
    engine: EngineSettings

    @classmethod
    def of(cls, request: EvaluationRequest) -> OptionSources:
        """Raises: SettingsError for wrong overrides."""
        overrides = request.overrides
        like = settings_like(request.like, overrides)
        run = checkpoint = None
        if is_starter(request.model):
            # A starter's settings record how it was made, on another machine; this one chooses its own number format.
            run = load(find(request.model).settings, ["engine.dtype=auto", *overrides])
        elif not request.served:
            path, name = named(Path(request.model))
            if is_run_folder(path):
                run, checkpoint = RunFolder.open(path).stored_settings(overrides), name
        # A config that the user names in this command counts more than what the run was trained with.
        of_config = like is not None and not is_run_folder(request.like or "") and "engine" in like.model_fields_set
        settings = like if of_config else run or like
        engine = _engine_with(request) if settings is None else settings.engine
        return cls(run, checkpoint, like, engine)


def _engine_with(request: EvaluationRequest) -> EngineSettings:
    """The engine of a request without a run or config."""
    for override in request.overrides:
        if not override.startswith("engine") or request.served or request.model in WEIGHTLESS:
            raise SettingsError(
                f"override {override!r:.80} changes a run or a config, and {request.model} is none",
                advice="add --like CONFIG",
            )
    if not request.overrides:
        return EngineSettings()
    # Only the engine is used; the other keys are those that a config requires.
    required = {"name": "eval", "algorithm": "gagpo", "environment": {"id": "gagpo/ALFWorld-v0"}}
    return parse({**required, "model": request.model}, "eval", request.overrides).engine


def require_trust(request: EvaluationRequest, conditions: Conditions, sources: OptionSources) -> None:
    """Raise UntrustedCode if a run folder names code from elsewhere that neither the user nor a config names."""
    model_folder = like_folder = None
    if sources.run is not None and not is_starter(request.model):
        model_folder = named(Path(request.model))[0]
    if request.like is not None and is_run_folder(request.like):
        like_folder = Path(request.like)
    environment_folder = model_folder if sources.like is None else like_folder
    if environment_folder is not None:
        chosen = request.kwargs or {}
        arguments = {name: value for name, value in conditions.kwargs.items() if name not in chosen}
        require_environment_trust(environment_folder, conditions.environment, request.environment, arguments)
    if request.served or request.model in WEIGHTLESS:
        return  # no engine is loaded
    is_of_like = sources.like is not None and sources.engine is sources.like.engine
    engine_folder = like_folder if is_of_like else model_folder
    if engine_folder is not None:
        require_engine_trust(engine_folder, sources.engine)


def device_of(request: EvaluationRequest, run: RunSettings | None) -> str:
    return request.device or (run.device if run else "cpu")


def _evaluated_agent(prepared: PreparedEvaluation, sources: OptionSources) -> EvaluatedAgent:
    """The random agent, the expert, or a model in this process."""
    request = prepared.request
    kwargs = prepared.kwargs
    if request.model == "random":
        if hasattr(prepared.env, "sample_action"):  # an environment that does not list its actions
            kwargs = {**kwargs, "expert": "random"}
        return EvaluatedAgent(RandomAgent(), "random", None, kwargs, identity={"weights": ""})
    if request.model == "expert":
        kwargs = {**kwargs, "expert": True}
        _require_expert(prepared.conditions.environment, kwargs, prepared.tasks.ids[0])
        return EvaluatedAgent(ExpertAgent(), "expert", None, kwargs, identity={"weights": ""})
    from gagpo.model.loading import commit_of  # torch, which the random agent and the expert do not need

    folder, name = weights_of(request, sources)
    like = sources.like
    revision = request.revision or (like.revision if like is not None and like.model == request.model else None)
    commit = None if sources.run is not None else commit_of(folder, revision)
    name = f"{name}@{commit[:12]}" if commit else name
    identity = weights_identity(Path(folder)) if Path(folder).is_dir() else commit or ""
    agent = _language_agent(folder, commit, prepared, sources)
    return EvaluatedAgent(
        agent,
        name,
        prepared.conditions.temperature,
        kwargs,
        identity={"weights": identity},
        session=lambda journal, episodes: closing(agent.engine),
    )


def weights_of(request: EvaluationRequest, sources: OptionSources) -> tuple[str, str]:
    """The folder, or the hub name, of the weights; and how the result names them: of a run with the iteration."""
    from gagpo.runs import keeping

    if sources.run is None:
        return folder_of(request.model), request.model
    if request.revision is not None:
        raise SettingsError(
            f"revision {request.revision!r} does not apply to the run {request.model}",
            key="revision",
            advice="name a checkpoint with @",
        )
    if is_starter(request.model):
        return folder_of(request.model), request.model
    path, _ = named(Path(request.model))
    checkpoint = keeping.find_checkpoint(path, sources.checkpoint, sources.run.training)
    # A run that is still training has other last weights a moment later.
    return checkpoint.model, f"{request.model}, iteration {checkpoint.iteration}"


def _require_expert(environment: str, kwargs: dict[str, object], task: str) -> None:
    """SettingsError unless the environment has an expert."""
    env = make_env(environment, kwargs, warn_of=())
    try:
        _, info = env.reset(seed=0, options={"task": task})
    except (Exception, SystemExit) as error:  # an environment may fail in any way
        if is_termination(error):
            raise
        raise SettingsError(f"cannot start task {task!r:.80}: {describe(error)}", where=environment) from error
    finally:
        env.close()
    if info.get("expert_action") is None:
        raise SettingsError("has no expert", where=environment, advice="evaluate `random` or a model instead")


def _language_agent(
    folder: str, commit: str | None, prepared: PreparedEvaluation, sources: OptionSources
) -> LanguageAgent:
    """The loaded model with the prompts of the conditions."""
    conditions = prepared.conditions
    engine = engine_of(folder, commit, prepared.request, sources)
    sampling = Sampling(conditions.temperature, conditions.max_tokens)
    return language_agent(engine, prepared.env, sampling, **dict(conditions.context))


def engine_of(folder: str, commit: str | None, request: EvaluationRequest, sources: OptionSources) -> Engine:
    """The engine with the model of a request; the caller closes it.

    Only the request allows the model's own code to run: a run folder may come from somebody else.
    """
    from gagpo.model.chosen_format import formats_for
    from gagpo.model.dtypes import AUTO
    from gagpo.model.loading import load_model, load_tokenizer, width_of

    engine_settings = sources.engine
    device = device_of(request, sources.run)
    trust = request.trust_remote_code
    dtype: str = engine_settings.dtype
    if dtype == AUTO:  # weights of no run: a run has stored what its machine chose
        dtype = formats_for(device, width_of(folder, commit)).sampling
    model = load_model(folder, dtype, device, trust_remote_code=trust, revision=commit)
    tokenizer = load_tokenizer(folder, commit, trust_remote_code=trust)
    return make_engine(
        engine_settings.options,
        model,
        tokenizer,
        dtype=dtype,
        memory=engine_settings.gpu_memory_utilization,
    )
