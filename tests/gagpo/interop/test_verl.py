"""verl's agent loop over our environments, with its own classes and a scripted server in place of the GPU."""

# ruff: noqa: E402 (without the package there is nothing to import)

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

agent_loop = pytest.importorskip("verl.experimental.agent_loop.agent_loop")

import verl.trainer
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto

from gagpo.envs.testing import CorridorEnv
from gagpo.interop.verl import EnvironmentLoop, dataset
from gagpo.sft.small_model import save_folder

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
    loop = EnvironmentLoop.__new__(EnvironmentLoop)
    loop.tokenizer, loop.server_manager = tokenizer, Server(tokenizer, words)
    loop.rollout_config = OmegaConf.create({"response_length": response_length, "prompt_length": 200})
    return loop


def row(**changes):
    return {**dataset(CORRIDOR, {"max_turns": 20}, count=1, prompt_name="plain")[0], **changes}


def test_it_is_registered_and_rows_name_it():
    assert agent_loop._agent_loop_registry["gagpo"]["_target_"].endswith("verl.EnvironmentLoop")
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
    loop = loop_of(tokenizer, words, response_length=4000)  # more than the episode needs
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


class Walker:
    """In place of verl's client: walks to the door of whatever it is shown last, or never."""

    def __init__(self, tokenizer, lost):
        self.tokenizer, self.lost = tokenizer, lost

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        text = self.tokenizer.decode(prompt_ids)
        place, door = map(int, re.findall(r"You stand at (\d+)\. Go to door (\d+)\.", text)[-1])
        word = "sideways" if self.lost else "left" if place > door else "right"
        ids = [*self.tokenizer.encode(word, add_special_tokens=False), self.tokenizer.eos_token_id]
        return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids))


@pytest.mark.parametrize("lost", [False, True])
def test_verls_own_worker_makes_a_batch_of_it(tiny, tmp_path, lost):
    """Its settings, its registry file and its post-processing; only the server that samples is ours."""
    model, tokenizer = tiny
    save_folder(model, tokenizer, tmp_path / "model")
    (tmp_path / "loops.yaml").write_text("- {name: gagpo, _target_: gagpo.interop.verl.EnvironmentLoop}\n")
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_dir(str(Path(verl.trainer.__file__).parent / "config"), version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={tmp_path / 'model'}",
                f"{rollout}.name=vllm",
                f"{rollout}.prompt_length=200",
                f"{rollout}.response_length=1000",
                f"{rollout}.calculate_log_probs=true",
                f"{rollout}.agent.default_agent_loop=gagpo",
                f"{rollout}.agent.agent_loop_config_path={tmp_path / 'loops.yaml'}",
            ],
        )
    worker = agent_loop.AgentLoopWorker(config, Walker(tokenizer, lost))
    rows = [one for one in dataset(CORRIDOR, {"max_turns": 20}, "test", prompt_name="plain") for _ in range(2)]
    columns = {name: np.array([one[name] for one in rows], dtype=object) for name in rows[0]}
    columns["raw_prompt"] = columns.pop("prompt")
    out = asyncio.run(worker.generate_sequences(DataProto(non_tensor_batch=columns)))
    assert len(out) == len(rows) == 8
    mask, attention = out.batch["response_mask"], out.batch["attention_mask"][:, 200:]
    assert out.batch["rm_scores"].sum(-1).tolist() == [float(not lost)] * 8
    assert out.non_tensor_batch["success"].tolist() == [not lost] * 8
    assert (out.batch["rollout_log_probs"] == -0.5 * mask).all() and (mask <= attention).all()
    turns = out.non_tensor_batch["__num_turns__"] // 2
    eos = out.batch["responses"] == tokenizer.eos_token_id
    assert ((eos & (mask == 1)).sum(-1).numpy() == turns).all() and (turns == 20).all() == lost
    assert (out.batch["prompts"][0] == out.batch["prompts"][1]).all()  # a group shares its start
