"""A new small language model: random weights, and a tokenizer trained on the texts of an environment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gagpo.agents.engines.base import write_stop_tokens
from gagpo.base import durable, manifest
from gagpo.base.errors import InvalidArgument
from gagpo.model.flat import attention
from gagpo.settings.sft import SftModelSettings

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
"""The system message lists the tools, calls are in Hermes format, and user messages give their results."""

SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

APART = r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]|\s"
NAME_AND_NUMBER = r" ?\p{L}+ \p{N}+(?![\p{L}\p{N}])"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama model and what its tokenizer is trained for.

    width: size of the hidden states, a multiple of ``heads``.
    heads: query heads, a multiple of ``key_value_heads``.
    feed_forward: width of the hidden layer of a block.
    vocabulary: most tokens of the tokenizer.
    numbers, marks: see :func:`train_tokenizer`.
    context: most tokens of a prompt and its response.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    key_value_heads: int = 1
    feed_forward: int = 384
    vocabulary: int = 1024
    numbers: str = "words"
    marks: Sequence[str] = ()
    context: int = 4096

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.key_value_heads:
            raise InvalidArgument("width must be a multiple of heads, and heads of key_value_heads", key="width")


def shape_for(
    model: SftModelSettings, *, layers: int = 4, width: int = 128, vocabulary: int = 1024, context: int = 4096
) -> ModelShape:
    """The shape that ``model`` sets; the other arguments are its defaults.

    Heads have 32 dimensions. Two heads share keys and values if their number is even.
    """
    width = model.hidden_size or width
    heads = max(1, width // 32)
    return ModelShape(
        layers=model.num_layers or layers,
        width=width,
        heads=heads,
        key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        feed_forward=3 * width,
        vocabulary=model.vocab_size or vocabulary,
        numbers=model.numbers,
        marks=tuple(model.marks),
        context=context,
    )


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, numbers: str = "words", marks: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer: frequent words become one token, and every text can be encoded.

    vocabulary: most tokens.
    numbers: how numbers become tokens. Sums and long numbers need single digits. A name and its number as one token
        take one attention step to copy. With ``apart`` a word has the same tokens in quotes, in brackets and after a
        space, so copying it is repeating them.
    marks: texts that are one token each, including their spaces.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    for mark in marks:
        texts = itertools.chain.from_iterable(text.split(mark) for text in list(texts))
    core = Tokenizer(models.BPE())
    splitters: list[pre_tokenizers.PreTokenizer] = []
    if numbers == "digits":
        splitters = [pre_tokenizers.Digits(individual_digits=True)]
    elif numbers == "apart":
        splitters = [pre_tokenizers.Split(Regex(APART), "isolated")]
    elif numbers == "names":
        splitters = [pre_tokenizers.Split(Regex(f"{NAME_AND_NUMBER}| ?\\p{{L}}+| ?[^\\s\\p{{L}}]+|\\s+"), "isolated")]
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=numbers not in ("names", "apart"))
    core.pre_tokenizer = pre_tokenizers.Sequence([*splitters, splitter])
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


def config(shape: ModelShape, vocabulary: int, end: int | None = None, padding: int | None = None) -> LlamaConfig:
    """The config of a Llama model (transformers would load Qwen's own tokenizer for a Qwen2 model).

    vocabulary: tokens of its tokenizer.
    end, padding: ids of the special tokens.
    """
    return LlamaConfig(
        vocab_size=-(-vocabulary // 16) * 16,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )


def create(shape: ModelShape, tokenizer: PreTrainedTokenizerBase, seed: int) -> torch.nn.Module:
    """A Llama model with random weights drawn from ``seed``."""
    from transformers import AutoModelForCausalLM

    model_config = config(shape, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(model_config, attn_implementation=attention.NAME)
    return model


def build(shape: ModelShape, texts: Iterable[str], seed: int) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """A new model and a tokenizer trained on ``texts``."""
    tokenizer = train_tokenizer(texts, shape.vocabulary, shape.numbers, shape.marks)
    return create(shape, tokenizer, seed), tokenizer


def save_folder(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    files: Mapping[str, str] | None = None,
    more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write a Hugging Face folder under a temporary name and rename it.

    files: texts of further files, by file name.
    more: called with the temporary folder, to write further files.
    """
    from gagpo.model.loading import save

    write_stop_tokens(model, tokenizer)
    with durable.replacing_folder(folder) as temporary:
        save(model, tokenizer, temporary)
        for name, text in (files or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        more(temporary)
        manifest.write(temporary)
