"""A trained model for conversations: the weights of a run or a model with the prompts of its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Sampling
from gagpo.agents.prompts import Prompt, find_prompt
from gagpo.agents.setup import make_context, make_env
from gagpo.agents.trained_chat import ServedContext
from gagpo.base.errors import InvalidArgument
from gagpo.eval.conditions import Conditions, conditions_of
from gagpo.eval.models import OptionSources, device_of, engine_of, require_trust, weights_of
from gagpo.eval.request import WEIGHTLESS, EvaluationRequest
from gagpo.settings import RunSettings
from gagpo.settings.machine import require_device, require_model

MAX_TOKENS = 512  # of an answer of a model that was trained in no run here
TEMPERATURE = 0.4


@dataclass(frozen=True)
class ChatSource:
    """A model that can be talked to.

    name: of the model; of a run with the iteration.
    agent: its engine, and a :class:`ServedContext`. The caller closes the engine.
    """

    name: str
    agent: LanguageAgent


def chat_source(request: EvaluationRequest) -> ChatSource:
    """The model of a request. Its options for tasks have no meaning here.

    Raises:
        GagpoError: the model cannot be loaded, or its run names code that the user has not allowed to run.
    """
    if request.served or request.model in WEIGHTLESS:
        raise InvalidArgument(
            f"{request.model} has no weights here", key="model", advice="name a run, a model folder or a hub model"
        )
    sources = OptionSources.of(request)
    if sources.run is None:
        require_model(request.model)
    require_device(device_of(request, sources.run))
    conditions = None if sources.run is None else conditions_of(request, sources.run, None)
    if conditions is not None and not request.trust_remote_code:
        require_trust(request, conditions, sources)
    folder, name, commit = _located(request, sources)
    engine = engine_of(folder, commit, request, sources)
    trained = None if conditions is None else context_of_training(engine.tokenizer, conditions)
    sampling = Sampling(
        TEMPERATURE if request.temperature is None else request.temperature, request.max_tokens or MAX_TOKENS
    )
    if conditions is not None:
        sampling = Sampling(conditions.temperature, conditions.max_tokens)
    return ChatSource(name, LanguageAgent(engine, ServedContext(engine.tokenizer, trained), sampling))


def acting_agent(request: EvaluationRequest) -> tuple[Conditions, LanguageAgent]:
    """The model of a request as it acts in the request's environment; the caller closes the agent's engine.

    Raises: GagpoError as :func:`chat_source`.
    """
    sources = OptionSources.of(request)
    if sources.run is None:
        require_model(request.model)
    conditions = conditions_of(request, sources.run, sources.like)
    if not request.trust_remote_code:
        require_trust(request, conditions, sources)
    folder, _, commit = _located(request, sources)
    engine = engine_of(folder, commit, request, sources)
    context = context_of_training(engine.tokenizer, conditions)
    return conditions, LanguageAgent(engine, context, Sampling(conditions.temperature, conditions.max_tokens))


def context_of_training(tokenizer: object, conditions: Conditions) -> Context:
    """How a run prompts its model. Makes the environment, which has the instructions and the tools."""
    env = make_env(conditions.environment, conditions.kwargs, warn_of=())
    try:
        return make_context(tokenizer, env, **dict(conditions.context))
    finally:
        env.close()


def context_of_run(run: Path, settings: RunSettings, tokenizer: object, trust_remote_code: bool = False) -> Context:
    """As :func:`context_of_training`, for the only environment of a run.

    The environment is made only if the prompt shows its instructions or tools.

    Raises:
        GagpoError: the run has several environments, or names code that the user has not allowed to run.
    """
    request = EvaluationRequest(model=str(run), trust_remote_code=trust_remote_code)
    conditions = conditions_of(request, settings, None)
    options = dict(conditions.context)
    prompt = options["prompt"] if isinstance(options["prompt"], Prompt) else find_prompt(options["prompt"])
    if not prompt.calls and not any("instructions" in getattr(prompt, key) for key in ("system", "first", "turn")):
        return make_context(tokenizer, None, **options)
    if not trust_remote_code:
        require_trust(request, conditions, OptionSources(settings, None, None, settings.engine))
    return context_of_training(tokenizer, conditions)


def _located(request: EvaluationRequest, sources: OptionSources) -> tuple[str, str, str | None]:
    """The folder or hub name of the weights, the model's name, and the commit of a hub model."""
    from gagpo.model.loading import commit_of

    folder, name = weights_of(request, sources)
    return folder, name, None if sources.run is not None else commit_of(folder, request.revision)
