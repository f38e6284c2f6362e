"""TRL's own trainer plays our worlds: two steps with verbs as tools, two with plain text."""

# ruff: noqa: E402 (without the package there is nothing to import)

from pathlib import Path

import pytest
import torch

trl = pytest.importorskip("trl")

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.env import MathEnv
from gagpo.interop.trl import dataset, environment_factory
from gagpo.interop.verbs import VERBS, verbs_of

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
MATHS = {"size": 20, "test_size": 10}


@pytest.fixture(scope="module")
def tokenizer():
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["Act by calling tools"] * 4,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return made


@pytest.mark.parametrize(
    "env_id, kwargs, verbs, call",
    [
        ("gagpo/Math-v0", MATHS, True, ("calculate", {"expression": "1 + 1"})),
        (CORRIDOR, {}, False, ("act", {"action": "left"})),
    ],
)
def test_two_steps_of_training(tmp_path, tokenizer, monkeypatch, env_id, kwargs, verbs, call):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=8192, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    made, called = environment_factory(env_id, kwargs, verbs=verbs), []

    class Watched(made):
        def get_reward(self):
            called.append(self._game.turns)
            return super().get_reward() + len(called) % 2  # rewards that differ, so that there is a gradient

    name, arguments = call
    scripted = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    monkeypatch.setattr(grpo_trainer, "parse_response", lambda *_, **__: dict(scripted))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, num_generations=2, report_to=[],
            max_completion_length=600, max_tool_calling_iterations=3, learning_rate=1e-2, use_cpu=True,
            save_strategy="no", disable_tqdm=True, generation_kwargs={"max_new_tokens": 8}, logging_steps=1,
        ),
        train_dataset=dataset(env_id, kwargs, count=4, verbs=verbs),
        processing_class=tokenizer,
        environment_factory=Watched,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 2
    assert called == [3, 3, 3, 3]  # every rollout acted as often as it was allowed to
    assert any((one != two).any() for one, two in zip(before, model.parameters(), strict=True))


def test_verbs_are_tools_and_say_what_the_world_reads():
    tools = environment_factory("gagpo/Math-v0", MATHS)()
    row = dataset("gagpo/Math-v0", MATHS, count=3)[1]
    env = MathEnv(**MATHS)
    assert tools.reset(**row) == env.reset(seed=row["seed"], options={"task": row["task"]})[0]
    assert tools.calculate(expression="6 * 7") == "Calculator: 42" == env.step("<calc>6 * 7</calc>")[0]
    assert tools.answer(value="0.123") == env.step(r"\boxed{0.123}")[0]
    assert tools.get_reward() == 0.0
    with pytest.raises(InvalidArgument, match="calculate takes expression"):
        tools.calculate(formula="1")
    schema = get_json_schema(tools.calculate)["function"]
    assert schema["name"] == "calculate"
    assert schema["parameters"]["required"] == ["expression"]


@pytest.mark.parametrize("env_id", sorted(VERBS))
def test_every_verb_has_a_schema(env_id):
    from gagpo.interop.verbs import as_method

    for verb in verbs_of(env_id):
        schema = get_json_schema(as_method(verb, lambda *_: "").__get__(object()))["function"]
        assert set(schema["parameters"]["properties"]) == set(verb.arguments)
        assert verb.action(dict.fromkeys(verb.arguments, "x"))


def test_rows_are_a_data_set_and_after_the_end_nothing_happens():
    made = dataset(CORRIDOR, split="test", verbs=False)
    assert isinstance(made, Dataset) and set(made.column_names) == {
        "prompt",
        "task",
        "task_type",
        "seed",
        "split",
        "index",
    }
    environment = environment_factory(CORRIDOR, {"max_turns": 2}, verbs=False)()
    environment.reset(**made[0])
    assert [environment.act(action=a)[:9] for a in ("left", "left", "left")] == ["You stand", "You stand", "The episo"]
    with pytest.raises(InvalidArgument, match="no verbs"):
        environment_factory(CORRIDOR)
