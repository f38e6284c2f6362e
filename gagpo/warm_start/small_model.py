"""A small causal language model from nothing: random weights and a tokenizer trained on environment text.

It is saved as an ordinary Hugging Face folder, so whatever loads it could as well load Qwen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gagpo.agents.engines.flat import attention
from gagpo.base import durable, manifest
from gagpo.settings.warm_start import SmallModelSettings

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool['function'] | tojson + '\n' }}{% endfor %}"
    "{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ ('' if loop.first else '\n') + '<tool_call>\n' + call['function'] | tojson + '\n</tool_call>' }}"
    "{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Tools are told by the system, calls are written as Hermes does, and their answers come from the user."""

SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


NAME_AND_NUMBER = r" ?\p{L}+ \p{N}+(?![\p{L}\p{N}])"


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, numbers: str = "words", marks: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: frequent words become one token, and no text whatsoever is unknown.

    marks: texts that are a token each, with their blanks. What stands after one is spelled as after a bracket.

    numbers: see :class:`SmallModelSettings`. A digit by itself is copied alike wherever it stands, which sums and
    long numbers need; a name with its number as one token takes one look back to copy, where its parts take two layers
    that work together.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    for mark in marks:
        texts = itertools.chain.from_iterable(text.split(mark) for text in list(texts))
    core = Tokenizer(models.BPE())
    first: list[pre_tokenizers.PreTokenizer] = []
    if numbers == "digits":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif numbers == "names":
        first = [pre_tokenizers.Split(Regex(f"{NAME_AND_NUMBER}| ?\\p{{L}}+| ?[^\\s\\p{{L}}]+|\\s+"), "isolated")]
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=numbers != "names")
    core.pre_tokenizer = pre_tokenizers.Sequence([*first, words])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def config(
    settings: SmallModelSettings, vocabulary: int, end: int | None = None, padding: int | None = None
) -> LlamaConfig:
    """The config of a Llama model of this shape for so many tokens; end, padding: ids of the special ones.

    Not Qwen2: transformers replaces the tokenizer of that model type by Qwen's own when it loads a folder.
    """
    return LlamaConfig(
        vocab_size=-(-vocabulary // 16) * 16,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        intermediate_size=settings.feed_forward,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )


def create(settings: SmallModelSettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> torch.nn.Module:
    """A Llama model of this shape with random weights drawn from ``seed``."""
    from transformers import AutoModelForCausalLM

    shape = config(settings, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(shape, attn_implementation=attention.NAME)
    return model


def build(
    settings: SmallModelSettings, texts: Iterable[str], seed: int
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """Tokenizer and model in one go; ``texts`` is what the tokenizer learns its words from."""
    tokenizer = train_tokenizer(texts, settings.vocabulary, settings.numbers, settings.marks)
    return create(settings, tokenizer, seed), tokenizer


def save_folder(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path, more: Mapping[str, str] | None = None
) -> None:
    """Write the folder under a temporary name and rename it, so that it is whole or absent.

    more: texts to put beside the model, by file name.
    """
    from gagpo.agents.model import save

    with durable.replacing_folder(folder) as temporary:
        save(model, tokenizer, temporary)
        for name, text in (more or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        manifest.write(temporary)
