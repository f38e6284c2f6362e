"""The run's engine, and the agents that play training episodes and evaluations."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from gagpo.agents.agent import ChatFormat, LanguageAgent
from gagpo.agents.engines.base import Engine, Sampling, engine_measures
from gagpo.agents.engines.registry import SERVERS
from gagpo.agents.setup import language_agent, make_engine
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.data.episodes import Episode
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import Reader
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.pool import Pool
from gagpo.envs.pool.mixed import MixedPool
from gagpo.eval.evaluate import evaluate
from gagpo.eval.results import EvalResult
from gagpo.settings import RunEnvironment, RunSettings, SettingsError
from gagpo.training.policy import TrainedPolicy


class Sampler:
    """The engine of a run and the agents on it.

    environments: one of each, by name, for their instructions and tools.
    model: what the engine samples from: the policy, a copy, or a model without weights (:func:`needs_weights`).
    rollout: plays jobs, here or on all ranks together.
    """

    def __init__(
        self,
        settings: RunSettings,
        environments: Mapping[str, TextEnv],
        policy: TrainedPolicy,
        model: torch.nn.Module,
        rollout: Rollout,
        ranks: Ranks,
    ):
        self.settings, self.environments, self.rollout = settings, environments, rollout
        self.engine = _engine(settings, policy, model, ranks)
        if settings.longest_response >= self.engine.max_length:
            raise SettingsError(
                f"rollout.max_tokens={settings.longest_response} leaves no room for a prompt in the context of "
                f"{settings.model} ({self.engine.max_length} tokens): lower it"
            )

    def agent(self) -> LanguageAgent:
        """The agent that plays training episodes, in every environment."""
        rolling = self.settings.rollout
        agents = {env.name: self._agent_of(env, rolling.temperature) for env in self.settings.all_environments}
        if "" in agents:
            return agents[""]
        formats = {name: ChatFormat(agent.context, agent.sampling.max_tokens) for name, agent in agents.items()}
        first = next(iter(agents.values()))
        return LanguageAgent(self.engine, first.context, rolling.sampling, formats)

    def _agent_of(self, env: RunEnvironment, temperature: float) -> LanguageAgent:
        """The agent that plays in one environment."""
        sampling = Sampling(temperature, env.max_tokens)
        return language_agent(self.engine, self.environments[env.name], sampling, **dict(env.context))

    def evaluate(
        self, pool: Pool, env: RunEnvironment, panel: TaskSet, model: str, quiet: bool
    ) -> tuple[EvalResult, list[Episode]]:
        """Play a panel of one environment. model: the name in the result."""
        settings, measured, environment = self.settings, env.evaluation, env.environment
        return evaluate(
            self._agent_of(env, measured.temperature),
            pool.pools[env.name] if isinstance(pool, MixedPool) else pool,
            panel,
            environment=environment.id,
            kwargs=self.environments[env.name].material(environment.kwargs),
            model=model,
            temperature=measured.temperature,
            tries=measured.episodes_per_task,
            concurrency=settings.rollout.concurrency,
            deterministic=settings.rollout.deterministic,
            quiet=quiet,
            rollout=self.rollout,
        )

    def measures(self) -> dict[str, float]:
        """Metrics of the engine."""
        return engine_measures(self.engine)


def needs_weights(settings: RunSettings) -> bool:
    """Whether the engine needs a model with weights in this process, as all do except servers."""
    return settings.engine.name not in SERVERS


def _engine(settings: RunSettings, policy: TrainedPolicy, model: torch.nn.Module, ranks: Ranks) -> Engine:
    """The run's engine, with its own weights if those in training are sharded or change meanwhile."""
    chosen, ahead = settings.engine, settings.rollout.ahead > 0
    own = ahead or not ranks.alone
    arguments = chosen.arguments()
    tokenizer: Any = policy.tokenizer
    if own and chosen.name == "transformers":
        arguments["own"] = True
    if not ranks.alone and not needs_weights(settings):
        arguments["read"] = Reader(policy.model, settings.device, settings.training.dtype)
    if ahead:
        tokenizer = copy.deepcopy(tokenizer)
    engine = make_engine(chosen.name, model, tokenizer, **arguments)
    if own and engine.shares_weights:
        why, remedy = "rollout.ahead samples during updates", "rollout.ahead=0"
        if not ahead:
            why, remedy = "several processes shard them", "processes=1"
        raise SettingsError(f"engine {chosen.name} samples from the weights in training, and {why}; set {remedy}")
    return engine
