"""Average the weights of models that were trained from one another (Wortsman et al. 2022, arXiv 2203.05482).

python -m benchmarks.starters.average data/starters/alfworld-7 data/starters/alfworld-rl data/starters/alfworld-mean
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from gagpo.base.errors import InvalidArgument
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.sft.small_model import save_folder


@torch.no_grad()
def average(models: Sequence[str], folder: Path) -> Path:
    """Write the mean of ``models``, with the first one's tokenizer, to ``folder``, which it returns.

    Raises :class:`InvalidArgument` for fewer than two models, models of different shapes or tokenizers, and a folder
    that exists.
    """
    if len(models) < 2:
        raise InvalidArgument(f"a mean needs two models, got {len(models)}")
    if folder.exists():
        raise InvalidArgument(f"{folder} exists; name another folder or delete it")
    mean, tokenizer = load_model(models[0]), load_tokenizer(models[0])
    weights = dict(mean.named_parameters())
    for number, name in enumerate(models[1:], start=2):
        # The mean so far takes in the next model, if it is one of the same kind.
        other = dict(load_model(name).named_parameters())
        if {key: x.shape for key, x in other.items()} != {key: x.shape for key, x in weights.items()}:
            raise InvalidArgument(f"{name} has other weights than {models[0]}: there is no mean of the two")
        if load_tokenizer(name).get_vocab() != tokenizer.get_vocab():
            raise InvalidArgument(f"{name} has another tokenizer than {models[0]}: there is no mean of the two")
        for key, x in weights.items():
            x.add_((other[key] - x) / number)
    save_folder(mean, tokenizer, folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="The mean of the weights of models.")
    parser.add_argument("models", nargs="+", help="model folders or starters")
    parser.add_argument("folder", type=Path, help="the folder to make")
    given = parser.parse_args()
    print(average(given.models, given.folder))


if __name__ == "__main__":
    main()
