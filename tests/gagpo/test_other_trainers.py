"""The code of docs/interop.md, taken from that file and run."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gagpo.credit import BadTurns, turns_from_tokens
from gagpo.credit.gagpo import Gagpo
from gagpo.objectives import Layout
from tests.rejections import rejects

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"


def example(name: str) -> str:
    """The page's code block of that name."""
    match = re.search(rf"```python {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{PAGE} has no block {name}"
    return match.group(1)


def run(name: str) -> dict:
    scope: dict = {"__name__": f"example_{name}"}
    exec(compile(example(name), f"{PAGE.name}:{name}", "exec"), scope)
    return scope


@pytest.mark.parametrize("name", ["trl"])
def test_examples_are_short(name):
    code = [line for line in example(name).splitlines() if line.strip() and not re.match(r"(import|from) ", line)]
    assert len(code) < 30


def test_own_loop_runs(capsys):
    scope = run("loop")
    assert scope["new_K"].grad.abs().sum() > 0
    assert "clip_low" in capsys.readouterr().out


# Padded rows -------------------------------------------------------------------------------------------------------

MASK = [[1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0]]
TOKENS = [[5, 6, 9, 8, 7, 0], [5, 9, 8, 4, 4, 4], [3, 3, 3, 0, 0, 0]]


def brain_floats(values):
    return torch.tensor(values, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, brain_floats])
def test_rows_are_cut_into_turns(kind):
    turns = turns_from_tokens(kind(TOKENS), kind(MASK), kind([1.0, 2.0, 3.0]), [0, 0, 4])
    assert turns.episode_N.tolist() == [0, 0, 1, 1, 2]
    assert turns.reward_N.tolist() == [0, 1, 0, 2, 3]
    assert turns.tokens_N.tolist() == [2, 1, 1, 3, 2]
    # First turns of a group share their state; both second turns come after the observation 9 8.
    assert turns.states().tolist() == [0, 1, 0, 1, 2]


def test_token_rewards_are_paid_to_their_turn():
    reward = np.array([[0, 1, 2, 0, 0, 4.0], [0, 0, 0, 0, 0, 8], [16, 0, 0, 0, 0, 32]])
    turns = turns_from_tokens(TOKENS, MASK, reward, [0, 0, 0])
    assert turns.reward_N.tolist() == [3, 4, 0, 8, 48]


def test_the_layout_of_a_mask_has_the_same_turns():
    layout = Layout.of_mask(torch.tensor(MASK))
    assert layout.turn_K.tolist() == [0, 0, 1, 2, 3, 3, 3, 4, 4]
    assert layout.row_K.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert layout.turn_tokens_M.tolist() == [2, 1, 1, 3, 2]


def test_padding_changes_nothing():
    plain = turns_from_tokens(TOKENS, MASK, [1.0, 2.0, 3.0], [0, 0, 0])
    wide = turns_from_tokens(
        np.pad(TOKENS, ((0, 0), (0, 5)), constant_values=77), np.pad(MASK, ((0, 0), (0, 5))), [1.0, 2.0, 3.0], [0, 0, 0]
    )
    assert Gagpo().advantage(wide).tolist() == Gagpo().advantage(plain).tolist()


def test_mismatched_rows_are_rejected():
    with rejects(BadTurns, "(3, 6)", "(2,)"):
        turns_from_tokens(TOKENS, MASK, [1.0, 2.0], [0, 0, 0])
    with rejects(BadTurns, "sampled", where="episode 1"):
        turns_from_tokens([[1], [1]], [[1], [0]], [1.0, 2.0], [0, 0])
    with rejects(BadTurns, key="mask_BL"):
        turns_from_tokens([1, 0], [1, 0], [1.0], [0])
    with rejects(ValueError, key="mask_BL"):
        Layout.of_mask(torch.ones(3))


# TRL -----------------------------------------------------------------------------------------------------------------

WORDS = ["<pad>", "<eos>", "start", "left", "right", "door", "wall", "open"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "many_turns, truncated",
    [(False, "counted"), (True, "counted"), (True, "masked"), (True, "all masked")],
)
def test_trl_trains_a_tiny_model(tmp_path, many_turns, truncated):
    """Masked, an episode that was cut off has no token left, and some or all may be so."""
    pytest.importorskip("trl", reason="the example is one for TRL: install trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig

    raw = Tokenizer(models.WordLevel({word: location for location, word in enumerate(WORDS)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), **sizes, **heads, pad_token_id=0, eos_token_id=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def two_turns(prompts, trainer):
        """A turn of two tokens, an observation that tells whether the first was "left", and a turn of one token."""
        ids = torch.tensor([tokenizer(prompt)["input_ids"] for prompt in prompts])
        first = trainer.model.generate(ids, do_sample=True, max_new_tokens=2, min_new_tokens=2)
        observed = torch.tensor([[WORDS.index("door" if row[-2] == 3 else "wall")] for row in first.tolist()])
        responses = trainer.model.generate(
            torch.cat([first, observed], 1), do_sample=True, max_new_tokens=1, min_new_tokens=1
        )
        completions = responses[:, ids.shape[1] :].tolist()
        for location, messages in enumerate(completions):
            cut = truncated == "all masked" or location % 2
            messages[-1] = messages[-1] if truncated == "counted" else 3 if cut else WORDS.index("<eos>")
        return {
            "prompt_ids": ids.tolist(),
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": [[1, 1, 0, 1] for _ in completions],
        }

    def reward(completion_ids, **_):
        return [float(sum(ids)) % 5 for ids in completion_ids]

    options = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=4,
        mask_truncated_completions=truncated != "counted",
        max_steps=2,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = run("trl")["GagpoTrainer"](
        model=model,
        args=options,
        reward_funcs=reward,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["start", "start left"] if not many_turns else ["start"] * 2}),
        **({"rollout_func": two_turns} if many_turns else {}),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    changed = any(not torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    assert changed == (truncated != "all masked")
