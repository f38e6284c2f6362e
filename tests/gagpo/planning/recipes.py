"""The page of recipes and what its commands print: ``python -m tests.gagpo.planning.recipes`` writes it anew.

Models are shapes without weights, by the numbers of their published configurations.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

import typer
from transformers import Qwen2Config

from gagpo.cli.main import app
from gagpo.settings import load

PAGE = Path(__file__).parents[3] / "docs" / "your-model.md"
SHAPES = {
    "Qwen/Qwen2.5-1.5B-Instruct": Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064, tie_word_embeddings=False, max_position_embeddings=32768,
    ),
}  # fmt: skip
BLOCK = re.compile(r"```\n((?:gagpo (?:plan|simulate) [^\n]+\n)+)```\n```text\n(.*?)```", re.DOTALL)
KEPT = re.compile(r"^(tokens of|\d+ GB: |\d+ GPUs?, ahead)")


def printed(command: str, folder: Path) -> list[str]:
    """The sentences that a command of the page prints, its tables aside."""
    name, config, *words = shlex.split(command)[1:]
    model = load(config).model
    SHAPES[model].save_pretrained(folder / model)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(typer.Exit):
        app([name, config, f"model={folder / model}", *words], standalone_mode=False)
    return [line for line in out.getvalue().splitlines() if KEPT.match(line)]


def rendered(text: str, folder: Path) -> str:
    """The page with what its commands print now."""

    def block(match: re.Match[str]) -> str:
        said = [line for command in match[1].splitlines() for line in printed(command, folder)]
        return f"```\n{match[1]}```\n```text\n" + "\n".join(said) + "\n```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), Path(name)), encoding="utf-8")
