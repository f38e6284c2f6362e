"""Evaluate a run, a model folder, a hub model, a model behind a server, the random agent or the expert."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from gagpo.agents.agent import ExpertAgent, LanguageAgent, RandomAgent
from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.answer import Usage
from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.engines.base import Sampling
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.base.errors import InvalidArgument, is_termination
from gagpo.envs.arguments import require_arguments
from gagpo.envs.pool.wire import describe
from gagpo.envs.program.env import ProgramEnv
from gagpo.envs.tools import tools_of
from gagpo.eval.evaluate import ChosenPanel, EvaluationOutcome, Player
from gagpo.eval.journal import Journal, weights_identity
from gagpo.eval.request import (
    MAX_TOKENS,
    PREFIX,
    WEIGHTLESS,
    EvaluationRequest,
    is_run_folder,
    names_of,
    settings_like,
)
from gagpo.eval.results import EvalResult
from gagpo.eval.trust import require_engine_trust, require_environment_trust
from gagpo.model.pretrained import folder_of
from gagpo.model.starters import find, is_starter
from gagpo.runs.reading import in_one_line
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import EngineSettings, RunSettings, SettingsError, load
from gagpo.settings.machine import require_device, require_model

EPISODES_AT_ONCE = 16  # at a server


def evaluate(model: str, **options: Any) -> EvalResult:
    """Evaluate a model on a split of an environment.

    model and options: those of :class:`gagpo.eval.request.EvaluationRequest`.

    Raises:
        GagpoError: something the caller can correct; nothing has been played.
    """
    return measure(request_of(model, **options)).result


evaluate.__signature__ = inspect.signature(EvaluationRequest)  # type: ignore[attr-defined]


def request_of(model: str, **options: Any) -> EvaluationRequest:
    """The request; InvalidArgument in one line for an option that is wrong."""
    with in_one_line():
        return EvaluationRequest(model, **options)


def measure(request: EvaluationRequest) -> EvaluationOutcome:
    """As :func:`evaluate`, with the episodes, the journal and the cost."""
    run, which = (None, None) if request.served else _run_of(request.model)
    has_weights = not request.served and request.model not in WEIGHTLESS
    if run is None and has_weights:
        require_model(request.model)
    like = settings_like(request.like)
    original = request
    given = request.kwargs or {}
    request = request.completed(run, like)
    if not request.trust_remote_code:
        _require_trust(original, request, run, like)
    require_arguments(request.environment or "", request.kwargs)
    if has_weights:
        require_device(_device(request, run))
    panel = ChosenPanel.of(request, given)
    return _play_served(panel) if request.served else panel.play(_player(panel, run, which, like))


def measure_all(request: EvaluationRequest) -> dict[str, EvaluationOutcome]:
    """As :func:`measure`, for every environment of a run or of ``like``, by name; ``""`` for a single one.

    A request that names an environment measures only that one. Each environment has a file of episodes of its own.
    """
    settings = None
    if not request.environment:
        settings = settings_like(request.like) or (None if request.served else _run_of(request.model)[0])
    outcomes = {}
    for name in names_of(settings) if settings else []:
        episodes = request.episodes and file_of_environment(request.episodes, name)
        outcomes[name] = measure(replace(request, environment=name, episodes=episodes))
    return outcomes or {"": measure(request)}


def file_of_environment(path: Path, env: str) -> Path:
    """``result.json`` as ``result.maths.json``; the path itself in a run of one environment."""
    return path.with_name(f"{path.stem}.{env}{path.suffix}") if env else path


def _run_of(model: str) -> tuple[RunSettings | None, str | None]:
    """The settings of the run that ``model`` names, and the checkpoint after its ``@``; None for what is missing."""
    if is_starter(model):
        return load(find(model).settings), None
    path, which = named(Path(model))
    return (RunFolder.open(path).stored_settings(), which) if (path / "config.yaml").is_file() else (None, None)


def _require_trust(
    original: EvaluationRequest, completed: EvaluationRequest, run: RunSettings | None, like: RunSettings | None
) -> None:
    """Raise UntrustedCode if code of others is named by a run folder, and not by the user or a config of theirs."""
    folder_of_model = folder_of_like = None
    if run is not None and not is_starter(original.model):
        folder_of_model = named(Path(original.model))[0]
    if original.like is not None and is_run_folder(original.like):
        folder_of_like = Path(original.like)
    panel_folder = folder_of_model if like is None else folder_of_like
    if panel_folder is not None:
        arguments = set(completed.kwargs or {}) - set(original.kwargs or {})
        require_environment_trust(panel_folder, completed.environment or "", original.environment, arguments)
    if original.served or original.model in WEIGHTLESS:
        return  # no engine is loaded
    engine_folder, settings = folder_of_model, run
    if run is None:
        engine_folder, settings = folder_of_like, like
    if engine_folder is not None and settings is not None:
        require_engine_trust(engine_folder, settings.engine)


def _device(request: EvaluationRequest, run: RunSettings | None) -> str:
    return request.device or (run.device if run else "cpu")


def _player(panel: ChosenPanel, run: RunSettings | None, which: str | None, like: RunSettings | None) -> Player:
    """The random agent, the expert, or a model in this process, with the checkpoint ``which`` of ``run``."""
    request, kwargs = panel.request, panel.kwargs
    if request.model == "random":
        if hasattr(panel.env, "sample_action"):  # an environment that does not list its actions
            kwargs = {**kwargs, "expert": "random"}
        return Player(RandomAgent(), "random", {"weights": ""}, None, kwargs)
    if request.model == "expert":
        kwargs = {**kwargs, "expert": True}
        _require_expert(request.environment or "", kwargs, panel.tasks.ids[0])
        return Player(ExpertAgent(), "expert", {"weights": ""}, None, kwargs)
    from gagpo.model.loading import commit_of  # torch, which the random agent and the expert do not need

    folder = _folder(request, run, which)
    revision = request.revision or (like.revision if like is not None and like.model == request.model else None)
    commit = None if run is not None else commit_of(folder, revision)
    name = f"{request.model}@{commit[:12]}" if commit else request.model
    identity = weights_identity(Path(folder)) if Path(folder).is_dir() else commit or ""
    agent = _language_agent(folder, commit, panel, run, like)
    return Player(agent, name, {"weights": identity}, request.sampling_temperature, kwargs)


def _folder(request: EvaluationRequest, run: RunSettings | None, which: str | None) -> str:
    """The folder, or the hub name, of the weights."""
    from gagpo.runs import keeping

    if run is None:
        return folder_of(request.model)
    if request.revision is not None:
        raise SettingsError(
            f"revision {request.revision!r} does not apply to the run {request.model}: name a checkpoint with @"
        )
    if is_starter(request.model):
        return folder_of(request.model)
    path, _ = named(Path(request.model))
    return str(keeping.chosen(path, which, run.training).model)


def _require_expert(environment: str, kwargs: dict[str, object], task: str) -> None:
    """SettingsError unless the environment has an expert."""
    env = make_env(environment, kwargs, given=())
    try:
        _, info = env.reset(seed=0, options={"task": task})
    except (Exception, SystemExit) as error:  # an environment may fail in any way
        if is_termination(error):
            raise
        raise SettingsError(f"{environment} cannot start task {task!r:.80}: {describe(error)}") from error
    finally:
        env.close()
    if info.get("expert_action") is None:
        raise SettingsError(f"{environment} has no expert: evaluate `random` or a model instead")


def _language_agent(
    folder: str, commit: str | None, panel: ChosenPanel, run: RunSettings | None, like: RunSettings | None
) -> LanguageAgent:
    """The loaded model. Only the request allows its own code to run: a run folder may come from somebody else."""
    from gagpo.model.loading import load_model, load_tokenizer

    request, settings = panel.request, run or like
    sampler, trust = settings.engine if settings else EngineSettings(), request.trust_remote_code
    device = _device(request, run)
    model = load_model(folder, sampler.dtype, device, trust_remote_code=trust, revision=commit)
    tokenizer = load_tokenizer(folder, commit, trust_remote_code=trust)
    engine = make_engine(sampler.name, model, tokenizer, **sampler.arguments())
    sampling = Sampling(request.sampling_temperature, request.max_tokens or MAX_TOKENS)
    return language_agent(engine, panel.env, sampling, **dict(request.context))


# A model behind a server ----------------------------------------------------------------------------------------------


def _play_served(panel: ChosenPanel) -> EvaluationOutcome:
    """Evaluate ``openai:NAME`` at ``request.server``, by default OpenAI's own."""
    request = panel.request
    if isinstance(panel.env, ProgramEnv):
        raise InvalidArgument(f"{request.environment} needs a model whose tokens gagpo samples, not one at a server")
    api, context = request.server or ApiSettings(request.model.removeprefix(PREFIX)), request.context
    chat = ChatSettings(
        context.prompt,
        getattr(panel.env, "instructions", ""),
        context.history,
        context.admissible,
        request.sampling_temperature,
        request.max_tokens or MAX_TOKENS,
        bool(getattr(panel.env, "multiline", False)),
    )
    client = ApiClient(api)
    agent = ApiAgent(client, chat, request.concurrency or EPISODES_AT_ONCE, tools_of(panel.env))
    player = Player(
        agent,
        f"{PREFIX}{api.model}",
        {"server": api.base_url},
        chat.temperature,
        panel.kwargs,
        deterministic=False,
        concurrency=EPISODES_AT_ONCE,
        session=partial(_billed, agent),
    )
    return replace(panel.play(player), usage=vars(client.spent))


@contextmanager
def _billed(agent: ApiAgent, journal: Journal | None, episodes: int) -> Iterator[None]:
    """Record requests and costs in the journal, so that limits hold across interruptions; close the agent at the end.

    An error says how many of the ``episodes`` are kept.
    """
    client = agent.client
    if journal is not None:
        # The cost of a request that was interrupted is unknown.
        counts = {one.name: int(journal.spent(one.name)) for one in fields(Usage) if one.name != "cost"}
        client.spent = Usage(**counts, cost=journal.spent("cost"))
        client.record = lambda change: journal.note_spent({name: n for name, n in vars(change).items() if n})
    try:
        yield
    except ApiError as error:
        kept = len(journal.episodes) if journal else 0
        advice = f"; {kept} of {episodes} episodes are kept, repeat the command to continue" if journal else ""
        raise type(error)(f"{error}{advice}") from None
    finally:
        agent.close()
