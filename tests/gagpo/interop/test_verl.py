"""verl's agent loop over our worlds, with its own classes and a scripted server in place of the GPU."""

# ruff: noqa: E402 (without the package there is nothing to import)

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

agent_loop = pytest.importorskip("verl.experimental.agent_loop.agent_loop")

from omegaconf import OmegaConf

from gagpo.envs.testing import CorridorEnv
from gagpo.interop.verl import WorldLoop, dataset

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


class Server:
    """Answers with the words it is given, one log-probability a token."""

    def __init__(self, tokenizer, words):
        self.tokenizer, self.words, self.prompts = tokenizer, iter(words), []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.prompts.append(list(prompt_ids))
        ids = [*self.tokenizer.encode(next(self.words), add_special_tokens=False), self.tokenizer.eos_token_id]
        return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids))


def loop_of(tokenizer, words, response_length=200):
    loop = WorldLoop.__new__(WorldLoop)
    loop.tokenizer, loop.server_manager = tokenizer, Server(tokenizer, words)
    loop.rollout_config = OmegaConf.create({"response_length": response_length})
    return loop


def row(**changes):
    return {**dataset(CORRIDOR, {"max_turns": 20}, count=1, style="plain")[0], **changes}


def test_it_is_registered_and_rows_name_it():
    assert agent_loop._agent_loop_registry["gagpo"]["_target_"].endswith("verl.WorldLoop")
    rows = dataset(CORRIDOR, count=3)
    assert [one["agent_name"] for one in rows] == ["gagpo"] * 3 and len({one["task"] for one in rows}) == 3


def test_what_is_sampled_is_what_is_trained(tiny):
    _, tokenizer = tiny
    one = row()
    env = CorridorEnv()
    env.reset(seed=one["seed"], options={"task": one["task"]})
    words = ["nonsense", "right", "left"]
    for action in words:
        env.step(action)
    while not words or env.place != env.door:
        words.append(env.expert_action())
        env.step(words[-1])
    loop = loop_of(tokenizer, words)
    out = asyncio.run(loop.run({}, **one))
    assert isinstance(out, agent_loop.AgentLoopOutput)
    assert (out.reward_score, out.num_turns, out.extra_fields["success"]) == (1.0, 2 * len(words), True)
    assert sum(out.extra_fields["turn_scores"]) == 1.0
    ids, mask = np.array(out.response_ids), np.array(out.response_mask)
    said = [[*tokenizer.encode(word, add_special_tokens=False), tokenizer.eos_token_id] for word in words]
    assert ids[mask == 1].tolist() == [token for turn in said for token in turn]
    assert out.response_logprobs == np.where(mask == 1, -0.5, 0.0).tolist()
    whole = out.prompt_ids + out.response_ids
    assert loop.server_manager.prompts[-1] == whole[: len(whole) - len(said[-1])]  # read exactly what is trained on


def test_it_ends_where_the_row_ends(tiny):
    out = asyncio.run(loop_of(tiny[1], ["right"] * 99, response_length=40).run({}, **row()))
    assert len(out.response_ids) <= 40 and out.reward_score == 0.0 and not out.extra_fields["success"]
