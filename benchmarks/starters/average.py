"""Average the weights of models that were trained from one another (Wortsman et al. 2022, arXiv 2203.05482).

python -m benchmarks.starters.average data/starters/alfworld-7 data/starters/alfworld-rl data/starters/alfworld-mean
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from gagpo.base.errors import InvalidArgument
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.sft.adapter import Trained, adapter_of, read


@torch.no_grad()
def average(models: Sequence[str], folder: Path) -> Path:
    """Write the mean of ``models``, with the first one's tokenizer, to ``folder``, which it returns.

    Of models that were all made by adapters, the adapters are averaged: their matrices A and B each. The mean of the
    products would have the sum of their ranks.

    Raises :class:`InvalidArgument` for fewer than two models, models of different shapes or tokenizers, and a folder
    that exists.
    """
    if len(models) < 2:
        raise InvalidArgument(f"a mean needs two models, got {len(models)}", key="models")
    if folder.exists():
        raise InvalidArgument("exists already", where=folder, advice="name another folder or delete it")
    reader = _read_adapter if all(adapter_of(name) for name in models) else _read_model
    mean, tokenizer = reader(models[0]), load_tokenizer(models[0])
    weights = _trained(mean)
    for number, name in enumerate(models[1:], start=2):
        # The mean so far takes in the next model, if it is one of the same kind.
        following = reader(name)
        if following.base != mean.base:
            raise InvalidArgument(
                f"has an adapter on another base than {models[0]}: there is no mean of the two", where=name
            )
        if following.base and _scale(name) != _scale(models[0]):
            raise InvalidArgument(
                f"scales its adapter differently from {models[0]}: there is no mean of the two", where=name
            )
        other = _trained(following)
        if {key: x.shape for key, x in other.items()} != {key: x.shape for key, x in weights.items()}:
            raise InvalidArgument(f"has other weights than {models[0]}: there is no mean of the two", where=name)
        if load_tokenizer(name).get_vocab() != tokenizer.get_vocab():
            raise InvalidArgument(f"has another tokenizer than {models[0]}: there is no mean of the two", where=name)
        for key, x in weights.items():
            x.add_((other[key] - x) / number)
    mean.save(tokenizer, folder, {})
    return folder


def _read_model(name: str) -> Trained:
    return Trained(load_model(name))


def _read_adapter(name: str) -> Trained:
    return read(_adapter_folder(name), "cpu")


def _scale(name: str) -> float:
    """What the product of an adapter's matrices is multiplied by."""
    config = adapters.config_of(_adapter_folder(name))
    return config.alpha / config.rank


def _adapter_folder(name: str) -> Path:
    folder = adapter_of(name)
    assert folder is not None  # asked before
    return folder


def _trained(trained: Trained) -> dict[str, torch.nn.Parameter]:
    """The weights that are averaged: those of the adapter if there is one."""
    model = trained.model
    return adapters.adapter_parameters(model) if trained.base else dict(model.named_parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="The mean of the weights of models.")
    parser.add_argument("models", nargs="+", help="model folders or starters")
    parser.add_argument("folder", type=Path, help="the folder to make")
    given = parser.parse_args()
    print(average(given.models, given.folder))


if __name__ == "__main__":
    main()
