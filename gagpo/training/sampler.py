"""The run's engine, and the agents of training episodes and evaluations."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from gagpo.agents.agent import ChatFormat, LanguageAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Engine, Sampling, engine_measures
from gagpo.agents.engines.idle import IdleEngine
from gagpo.agents.engines.peers import NoPeers, Peers
from gagpo.agents.setup import make_context, make_engine
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.data import Episode
from gagpo.distributed.ranks import Ranks
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.pool import Pool
from gagpo.envs.pool.mixed import MixedPool
from gagpo.eval.evaluate import EvaluatedAgent, evaluate
from gagpo.eval.results import EvalResult
from gagpo.learning.policy import TrainedPolicy
from gagpo.model.dtypes import dtype_of
from gagpo.model.sharding import ShardedReader
from gagpo.model.slices import fill_copy, follow_attention, unread_files
from gagpo.model.weights import PolicyTensors
from gagpo.settings import RunEnvironment, RunSettings, SettingsError


class Sampler:
    """The engine of a run and the agents on it.

    The agents exist once for the whole run: what their contexts have encoded and checked is used in every iteration.

    environments: one of each, by name, for their instructions and tools.
    model: what the engine samples from: the policy, a copy, or a model without weights (:func:`needs_weights`).
    rollout: runs jobs, here or on all ranks together.
    agent: of training episodes, in every environment.
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
        self.settings = settings
        self.environments = environments
        self.rollout = rollout
        self.engine = _engine(settings, policy, model, ranks)
        if settings.longest_response >= self.engine.max_length:
            raise SettingsError(
                (
                    f"rollout.max_tokens={settings.longest_response} leaves no room for a prompt in the "
                    f"context of {settings.model} ({self.engine.max_length} tokens)"
                ),
                key="rollout.max_tokens",
                advice="lower it",
            )
        contexts = {
            env.name: make_context(self.engine.tokenizer, environments[env.name], **dict(env.context))
            for env in settings.all_environments
        }
        self.agent = self._training_agent(contexts)
        self._evaluation_agents = {
            env.name: LanguageAgent(
                self.engine, contexts[env.name], Sampling(env.evaluation.temperature, env.max_tokens)
            )
            for env in settings.all_environments
        }

    def _training_agent(self, contexts: Mapping[str, Context]) -> LanguageAgent:
        """The agent of training episodes, in every environment."""
        sampling = self.settings.rollout.sampling
        environments = self.settings.all_environments
        formats = {env.name: ChatFormat(contexts[env.name], env.max_tokens) for env in environments if env.name}
        return LanguageAgent(self.engine, contexts[environments[0].name], sampling, formats)

    def evaluate(
        self, pool: Pool, env: RunEnvironment, tasks: TaskSet, model: str, quiet: bool
    ) -> tuple[EvalResult, list[Episode]]:
        """Evaluate on the tasks of one environment. model: the name in the result."""
        settings = self.settings
        evaluation = env.evaluation
        environment = env.environment
        evaluated = EvaluatedAgent(
            self._evaluation_agents[env.name],
            model,
            evaluation.temperature,
            self.environments[env.name].material(environment.kwargs),
            deterministic=settings.rollout.deterministic,
            concurrency=settings.rollout.concurrency,
            rollout=self.rollout,
        )
        env_pool = pool.pools[env.name] if isinstance(pool, MixedPool) else pool
        return evaluate(evaluated, env_pool, tasks, environment.id, tries=evaluation.episodes_per_task, quiet=quiet)

    def measures(self) -> dict[str, float]:
        """Metrics of the engine."""
        return engine_measures(self.engine)


def needs_weights(settings: RunSettings, ranks: Ranks) -> bool:
    """Whether the engine needs a model with weights in this process, as all do except servers.

    With ``rollout.ahead`` and several ranks only the first one samples. It needs the weights in any case, because those
    of the policy change meanwhile, and checking a server's copy must not need the other ranks.
    """
    if settings.rollout.ahead and not ranks.alone:
        return ranks.first
    return settings.engine.options.needs_weights


def fill_engine_model(settings: RunSettings, model: torch.nn.Module, policy: torch.nn.Module, ranks: Ranks) -> None:
    """Give the engine's model what the sharded policy has read since the model was copied from it.

    All ranks call it together: weights are gathered one by one, so that only the copy is ever whole. A model that was
    copied with its weights stays as it is.
    """
    if unread_files(model) is None:
        return
    follow_attention(model, policy)
    if not settings.rollout.ahead and not settings.engine.options.needs_weights:
        return
    tensors = PolicyTensors(policy, dtype_of(settings.engine.dtype))
    if needs_weights(settings, ranks):
        fill_copy(model, tensors, torch.device(settings.device))
    else:
        for _ in tensors:  # the ranks that sample need this rank's shards
            continue


def _engine(settings: RunSettings, policy: TrainedPolicy, model: torch.nn.Module, ranks: Ranks) -> Engine:
    """The run's engine, with its own weights if those in training are sharded or change meanwhile."""
    chosen, ahead = settings.engine, settings.rollout.ahead > 0
    own_weights = ahead or not ranks.alone
    reader = None
    peers: Peers | None = None if ranks.alone else ranks
    if ahead and not ranks.alone:
        if not ranks.first:
            return IdleEngine(model, policy.tokenizer, chosen.options.max_length, chosen.dtype)
        peers = NoPeers()
    elif not ranks.alone and not needs_weights(settings, ranks):
        reader = ShardedReader(policy.model, settings.device, settings.training.dtype)
    engine = make_engine(
        chosen.options,
        model,
        copy.deepcopy(policy.tokenizer) if ahead else policy.tokenizer,
        dtype=chosen.dtype,
        memory=chosen.gpu_memory_utilization,
        own_weights=own_weights,
        reader=reader,
        peers=peers,
    )
    if own_weights and engine.shares_weights:
        why, remedy = "rollout.ahead samples during updates", "rollout.ahead=0"
        if not ahead:
            why, remedy = "several processes shard them", "processes=1"
        raise SettingsError(
            f"engine {chosen.name} samples from the weights in training, and {why}", advice=f"set {remedy}"
        )
    return engine
