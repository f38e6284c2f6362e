"""Evaluating whatever can act: a run, a model folder, a hub or served model, the random agent, the expert."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gagpo.agents.agent import ExpertAgent, LanguageAgent, RandomAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.setup import language_agent, make_engine, make_world
from gagpo.agents.starters import find, folder_of, is_starter
from gagpo.envs.lookup import find_spec
from gagpo.eval import served
from gagpo.eval.journal import weights_identity
from gagpo.eval.panel import ChosenPanel, EvaluationOutcome, Player
from gagpo.eval.request import MAX_TOKENS, EvaluationRequest, settings_like, taking
from gagpo.eval.results import EvalResult
from gagpo.runs.run_folder import RunFolder, named
from gagpo.settings import EngineSettings, RunSettings, SettingsError, load
from gagpo.settings.machine import require_device, require_model


@taking(EvaluationRequest)
def evaluate(request: EvaluationRequest) -> EvalResult:
    """Evaluate a model on a split of an environment.

    Raises :class:`gagpo.GagpoError` for what the caller can mend, before anything is played. What is None is taken from
    ``like``, else from the model's own run, else it has its default. Arguments:
    """
    return measure(request).result


def measure(request: EvaluationRequest) -> EvaluationOutcome:
    """As :func:`evaluate`, with the episodes, the journal and the cost beside the result."""
    if request.served:
        return served.measure(request)
    run, which = _run_of(request.model)
    weightless = request.model in ("random", "expert")
    if run is None and not weightless:
        require_model(request.model)
    like = settings_like(request.like)
    request = request.completed(run, like)
    find_spec(request.environment or "")
    if not weightless:
        require_device(_device(request, run))
    panel = ChosenPanel.of(request)
    return panel.play(_player(panel, run, which, like))


def measure_all(request: EvaluationRequest) -> dict[str, EvaluationOutcome]:
    """As :func:`measure`, of every world that a run, or what it is measured ``like``, has; ``""`` names the only one.

    Files that the request names are each world's own, with its name before their ending. A request that names a world
    or an environment is about that alone.
    """
    worlds = [] if request.world or request.environment else _worlds_of(request)
    if not worlds:
        return {"": measure(request)}
    return {world: measure(_for_world(request, world)) for world in worlds}


def _worlds_of(request: EvaluationRequest) -> list[str]:
    """The names of the worlds that a request without one is about; none where there are not several."""
    settings = settings_like(request.like) or (None if request.served else _run_of(request.model)[0])
    return [world.name for world in settings.worlds if world.name] if settings else []


def _for_world(request: EvaluationRequest, world: str) -> EvaluationRequest:
    episodes = request.episodes and file_of_world(request.episodes, world)
    return replace(request, world=world, episodes=episodes)


def file_of_world(path: Path, world: str) -> Path:
    """``result.json`` as ``result.maths.json``; the path itself in a run of one world."""
    return path.with_name(f"{path.stem}.{world}{path.suffix}") if world else path


def _device(request: EvaluationRequest, run: RunSettings | None) -> str:
    return request.device or (run.device if run else "cpu")


def _player(panel: ChosenPanel, run: RunSettings | None, which: str | None, like: RunSettings | None) -> Player:
    """The random agent, the expert, or whoever has weights; which: the checkpoint of ``run`` that is asked for."""
    request, kwargs = panel.request, panel.kwargs
    nobody: dict[str, object] = {"weights": ""}
    if request.model == "random":
        if hasattr(panel.world, "sample_action"):  # for worlds that do not list their actions
            kwargs = {**kwargs, "expert": "random"}
        return Player(RandomAgent(), "random", nobody, None, kwargs)
    if request.model == "expert":
        kwargs = {**kwargs, "expert": True}
        _require_expert(request.environment or "", kwargs, panel.tasks.ids[0])
        return Player(ExpertAgent(), "expert", nobody, None, kwargs)
    source = _Source.of(request, run, which, like)
    name = f"{request.model}@{source.commit[:12]}" if source.commit else request.model
    agent = _language_agent(source, panel, run, like)
    return Player(agent, name, {"weights": source.identity}, request.sampling_temperature, kwargs)


def _require_expert(environment: str, kwargs: dict[str, object], task: str) -> None:
    """SettingsError unless the environment, built with an expert, says what the expert would do first."""
    world = make_world(environment, kwargs)
    try:
        _, info = world.reset(seed=0, options={"task": task})
    finally:
        world.close()
    if info.get("expert_action") is None:
        raise SettingsError(f"{environment} has no expert: evaluate `random` or a model there")


def _run_of(model: str) -> tuple[RunSettings | None, str | None]:
    """The settings of the run that ``model`` names, if it names one, and which checkpoint is asked for, if one was."""
    if is_starter(model):
        return load(find(model).settings), None
    path, which = named(Path(model))
    if not (path / "config.yaml").is_file():
        return None, None
    return RunFolder.open(path).settings, which


@dataclass(frozen=True)
class _Source:
    """Where weights are loaded from. commit: of a hub model."""

    name: str
    commit: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def of(
        cls, request: EvaluationRequest, run: RunSettings | None, which: str | None, like: RunSettings | None
    ) -> _Source:
        """That of a checkpoint, a starter, a folder or a hub model; ``like`` knows the revision of its own model."""
        from gagpo.agents.model import commit_of  # torch, which the random agent and the expert need not wait for
        from gagpo.runs import keeping

        model, revision, trust = request.model, request.revision, request.trust_remote_code
        if run is not None:
            if revision is not None:
                raise SettingsError(f"{model} is a run, which has no revision {revision!r}: name a checkpoint with @")
            path, _ = named(Path(model))
            name = folder_of(model) if is_starter(model) else keeping.chosen(path, which, run.training).model
            return cls(name, None, run.trust_remote_code or trust)
        if like is not None and like.model == model:
            revision, trust = revision or like.revision, trust or like.trust_remote_code
        return cls(model, commit_of(model, revision), trust)

    @property
    def identity(self) -> str:
        """What tells these weights from any others."""
        folder = Path(self.name)
        return weights_identity(folder) if folder.is_dir() else self.commit or ""


def _language_agent(
    source: _Source, panel: ChosenPanel, run: RunSettings | None, like: RunSettings | None
) -> LanguageAgent:
    request, settings, trust = panel.request, run or like, source.trust_remote_code
    sampler = settings.engine if settings else EngineSettings()
    from gagpo.agents.model import load_model, load_tokenizer

    device = _device(request, run)
    model = load_model(source.name, sampler.dtype, device, trust_remote_code=trust, revision=source.commit)
    tokenizer = load_tokenizer(source.name, source.commit, trust_remote_code=trust)
    context, temperature = request.context, request.sampling_temperature
    assert temperature is not None  # the request is complete, and no server has a temperature of its own
    return language_agent(
        make_engine(sampler.name, model, tokenizer, **sampler.arguments()),
        panel.world,
        Sampling(temperature, request.max_tokens or MAX_TOKENS),
        style=context.style,
        history=context.history,
        admissible=context.admissible,
        template=context.template,
        calls=context.calls,
    )
