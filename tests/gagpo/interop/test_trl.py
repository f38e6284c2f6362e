"""TRL's own trainer plays our environments: two steps of training in each of two environments."""

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

from gagpo.interop.trl import dataset, environment_factory

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
    pre_trained_tokenizer_fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    pre_trained_tokenizer_fast.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    ).read_text()
    return pre_trained_tokenizer_fast


@pytest.mark.parametrize(
    "env_id, kwargs, action", [("gagpo/Math-v0", MATHS, "<calc>1 + 1</calc>"), (CORRIDOR, {}, "left")]
)
def test_two_steps_of_training(tmp_path, tokenizer, monkeypatch, env_id, kwargs, action):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=8192, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    result, called = environment_factory(env_id, kwargs), []

    class Watched(result):
        def get_reward(self):
            called.append(self._game.turns)
            return super().get_reward() + len(called) % 2  # rewards that differ, so that there is a gradient

    scripted = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "act", "arguments": {"action": action}}}],
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
        train_dataset=dataset(env_id, kwargs, count=4),
        processing_class=tokenizer,
        environment_factory=Watched,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 2
    assert called == [3, 3, 3, 3]  # every rollout acted as often as it was allowed to
    assert any((item != two).any() for item, two in zip(before, model.parameters(), strict=True))


def test_rows_are_a_data_set_and_after_the_end_nothing_happens():
    result = dataset(CORRIDOR, split="test")
    assert isinstance(result, Dataset) and set(result.column_names) == {
        "prompt",
        "task",
        "task_type",
        "seed",
        "split",
        "index",
    }
    environment = environment_factory(CORRIDOR, {"max_turns": 2})()
    environment.reset(**result[0])
    assert [environment.act(action=a)[:9] for a in ("left", "left", "left")] == ["You stand", "You stand", "The episo"]
    assert get_json_schema(environment.act)["function"]["parameters"]["required"] == ["action"]
