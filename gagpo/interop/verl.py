"""Our environments in verl: an agent loop, and the rows of its data set.

In verl's settings: ``actor_rollout_ref.rollout.agent.default_agent_loop=gagpo`` and
``...agent.agent_loop_config_path=`` a YAML file with ``[{name: gagpo, _target_: gagpo.interop.verl.EnvironmentLoop}]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from gagpo.agents.context import Context
from gagpo.agents.episodes import Turn
from gagpo.agents.prompts import text_prompt
from gagpo.base.errors import InvalidArgument
from gagpo.interop.games import Kwargs, TextGame, rows


@register("gagpo")
class EnvironmentLoop(AgentLoopBase):
    """Plays the episode of a row of :func:`dataset`. Sampled tokens are trained on as they are, never encoded again.

    The episode is truncated when the next response does not fit into ``rollout.response_length``. A first prompt longer
    than ``rollout.prompt_length`` raises InvalidArgument: verl would cut the task off on its left.
    """

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        wording = text_prompt(row.get("prompt_name") or "tags")
        game = await asyncio.to_thread(TextGame, row["env_id"], row.get("env_kwargs") or {})
        try:
            observation = await asyncio.to_thread(game.start, row["task"], int(row["seed"]))
            multiline = bool(getattr(game.env.unwrapped, "multiline", False))
            context = Context(self.tokenizer, wording, game.instructions, multiline=multiline)
            turns: list[Turn] = []
            limit = self.rollout_config.response_length
            request, scores = uuid4().hex, list[float]()
            weights: list[int] = []  # versions of the policy that sampled, if the server tells
            while not game.done:
                prompt = context.prompt(turns, observation)
                first = turns[0].prompt_ids if turns else prompt
                if len(first) > self.rollout_config.prompt_length:
                    raise InvalidArgument(
                        f"the first prompt of task {row['task']} has {len(first)} tokens, and rollout.prompt_length is "
                        f"{self.rollout_config.prompt_length}: set it to the longest prompt of the data set"
                    )
                room = limit - (len(prompt) - len(first))
                # Observations between responses count towards response_length too.
                if room <= 0:
                    break
                out = await self.server_manager.generate(
                    request_id=request,
                    prompt_ids=prompt.tolist(),
                    sampling_params={**sampling_params, "max_tokens": room},
                )
                said = getattr(out, "extra_fields", {})
                weights += [said[key] for key in ("min_global_steps", "max_global_steps") if said.get(key) is not None]
                ids = np.asarray(out.token_ids[:room], np.int32)
                logprobs = np.asarray((out.log_probs or [0.0] * len(ids))[: len(ids)], np.float32)
                turn = context.turn(ids)
                turn.observation, turn.prompt_ids, turn.response_ids, turn.logprobs = observation, prompt, ids, logprobs
                turns.append(turn)
                observation = await asyncio.to_thread(game.act, turn.action)
                scores.append(game.last_reward)
            return _output(turns, game, scores, weights, out.log_probs is not None)
        finally:
            game.close()


def _output(
    turns: Sequence[Turn], game: TextGame, scores: list[float], weights: list[int], with_logprobs: bool
) -> AgentLoopOutput:
    """The episode as one row: the first prompt, then responses (mask 1) and the tokens between them (mask 0)."""
    first = len(turns[0].prompt_ids)
    last = turns[-1]
    ids = np.concatenate([last.prompt_ids, last.response_ids])[first:]
    mask, logprobs = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.float32)
    for turn in turns:
        begin = len(turn.prompt_ids) - first
        mask[begin : begin + len(turn.response_ids)] = 1
        logprobs[begin : begin + len(turn.response_ids)] = turn.logprobs
    # Truncated by the environment's limit of turns, or by verl's limit of tokens.
    facts = {"success": game.success, "truncated": game.truncated or not game.done}
    # Trainers that sample ahead drop rows that are too old.
    versions = {"min_global_steps": min(weights), "max_global_steps": max(weights)} if weights else {}
    return AgentLoopOutput(
        prompt_ids=turns[0].prompt_ids.tolist(),
        response_ids=ids.tolist(),
        response_mask=mask.tolist(),
        response_logprobs=logprobs.tolist() if with_logprobs else None,
        reward_score=game.reward,
        num_turns=2 * len(turns),
        metrics={},
        extra_fields={"turn_scores": scores, "tool_rewards": [], "reward_extra_info": facts, **facts, **versions},
    )


def dataset(
    env_id: str,
    kwargs: Kwargs | None = None,
    split: str = "train",
    count: int | None = None,
    prompt_name: str = "tags",
) -> list[dict[str, object]]:
    """Rows for verl's parquet files, each with a task and a seed, so that a group starts alike."""
    own = {"env_id": env_id, "env_kwargs": dict(kwargs or {}), "prompt_name": prompt_name, "agent_name": "gagpo"}
    empty = [{"role": "user", "content": ""}]  # verl requires a prompt; the first observation takes its place
    return [
        {"prompt": empty, "data_source": env_id, "reward_model": {"style": "rule", "ground_truth": ""}, **own, **row}
        for row in rows(env_id, kwargs, split, count)
    ]
