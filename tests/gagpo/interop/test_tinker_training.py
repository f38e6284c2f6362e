"""The training loop of docs/use-in-your-trainer.md on the types of Tinker and its cookbook; the service is a stand-in.

Every call of the stand-in is held against the signature that Tinker publishes.
"""

import asyncio
import inspect
import re

import numpy as np
import pytest

pytest.importorskip("tinker_cookbook.rl.message_env")

import tinker
import torch
from tinker_cookbook.renderers import get_renderer

from gagpo.credit import Turns
from tests.gagpo.test_other_trainers import run

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
SAYS = re.compile(r"You stand at (\d+)\. Go to door (\d+)\.")


class Characters:
    """A tokenizer whose tokens are characters."""

    name_or_path, bos_token, eos_token, eos_token_id = "characters", None, None, None

    def encode(self, text, add_special_tokens=False):
        return [ord(one) for one in text]

    def decode(self, tokens, **more):
        return "".join(map(chr, tokens))


def published(method, *arguments, **named):
    inspect.signature(method).bind(None, *arguments, **named)


async def soon(value):
    return value


class Sampler:
    """Walks to the door, and every second episode away from it."""

    def __init__(self, owner):
        self.owner = owner

    def sample(self, **named):
        published(tinker.SamplingClient.sample, **named)
        text = "".join(map(chr, named["prompt"].to_ints()))
        place, door = map(int, SAYS.findall(text)[-1])
        self.owner.asked += 1
        right = (place < door) != (self.owner.asked % 3 == 0)
        tokens = [ord(one) for one in f" <action>{'right' if right else 'left'}</action>\n\nUser:"]
        logprobs = np.array([-0.5 - 0.01 * place for place in range(len(tokens))], dtype=np.float32)
        name = f"s{self.owner.asked}"
        one = tinker.SampledSequence("stop", name, np.array(tokens, dtype=np.int32), logprobs)
        return soon(tinker.SampleResponse(sequences=[one]))


class Training:
    def __init__(self):
        self.said, self.asked = [], 0

    def save_weights_and_get_sampling_client(self):
        published(tinker.TrainingClient.save_weights_and_get_sampling_client)
        self.said.append("sample")
        return soon(Sampler(self))

    def forward_backward(self, data, loss_fn):
        published(tinker.TrainingClient.forward_backward, data, loss_fn)
        self.said.append(("gradient", data, loss_fn))
        return soon(None)

    def optim_step(self, parameters):
        published(tinker.TrainingClient.optim_step, parameters)
        assert isinstance(parameters, tinker.AdamParams)
        self.said.append("step")
        return soon(None)


def test_the_printed_loop_trains():
    client, scope = Training(), run("tinker")
    renderer = get_renderer("role_colon", Characters())
    asyncio.run(scope["train"](client, renderer, CORRIDOR, iterations=2, tasks=2, size=3))
    assert [one if isinstance(one, str) else one[0] for one in client.said] == ["sample", "gradient", "step"] * 2
    for _, data, loss in (one for one in client.said if isinstance(one, tuple)):
        assert loss == "ppo" and data
        total, tokens = 0.0, 0
        for datum in data:
            columns = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
            inputs, targets = datum.model_input.to_ints(), columns["target_tokens"].tolist()
            assert inputs[1:] == targets[:-1] and {len(one) for one in columns.values()} == {len(targets)}
            sampled = columns["logprobs"] != 0
            said = "".join(chr(one) for one, mine in zip(targets, sampled.tolist(), strict=True) if mine)
            assert re.fullmatch(r" <action>(left|right)</action>\n\nUser:", said)
            assert columns["logprobs"][sampled].tolist() == pytest.approx([-0.5 - 0.01 * n for n in range(len(said))])
            assert torch.all(columns["advantages"][~sampled] == 0)
            assert len(set(columns["advantages"][sampled].tolist())) == 1  # one for a turn
            total, tokens = total + float(columns["advantages"].abs().sum()), tokens + len(said)
        assert total > 0 and all(len(datum.model_input.to_ints()) > 0 for datum in data)


def test_its_credit_is_that_of_the_turns():
    """By hand: two groups of two episodes, whose turns are known, against the credit of their columns."""
    from types import SimpleNamespace as Plain

    def turn(prompt, action, reward):
        said = Plain(tokens=action, logprobs=[-1.0] * len(action))
        return Plain(ob=tinker.ModelInput.from_ints(prompt), ac=said, reward=reward)

    first = [turn([1, 2], [7], 0.0), turn([1, 2, 7, 3], [8, 8], 1.0)]
    second = [turn([1, 2], [9, 9], 0.0), turn([1, 2, 9, 9, 3], [7], 0.0)]
    groups = [Plain(trajectories_G=[Plain(transitions=one) for one in (first, second)])]

    scope = run("tinker")
    credit = scope["load"]("gagpo", {}).credit
    found = scope["datums"](groups, credit)
    # The second turns of both have seen the same: 3. So have the first turns.
    table = Turns(
        reward_N=[0, 1, 0, 0], episode_N=[0, 0, 1, 1], group_E=[0, 0], state_N=[0, 1, 0, 1], tokens_N=[1, 2, 2, 1]
    )
    wanted = scope["advantages"](table, credit).per_token() / 6
    shown = [datum.loss_fn_inputs["advantages"].to_torch().numpy() for datum in found]
    own = np.concatenate([column[-size:] for column, size in zip(shown, (1, 2, 2, 1), strict=True)])
    assert own == pytest.approx(np.asarray(wanted)) and np.abs(own).sum() > 0
