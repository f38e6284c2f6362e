"""Add layers to a model without changing what it computes (as in Net2Net, Chen et al. 2016, arXiv 1511.05641).

python -m benchmarks.starters.deepen starter:alfworld-household 8 data/starters/alfworld-deep
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch

from gagpo.agents.model import load_model, load_tokenizer
from gagpo.base.errors import InvalidArgument
from gagpo.sft.small_model import save_folder


@torch.no_grad()
def deepen(model: str, layers: int, folder: Path) -> Path:
    """Write a Llama of ``layers`` layers that computes what ``model`` computes to ``folder``, which it returns.

    New layers lie evenly between the old ones. Each is a copy of the layer before it whose last matrices, those that
    add to the residual stream, are 0.

    Raises :class:`InvalidArgument` unless the model gets more layers and no more than twice as many, and for a folder
    that exists.
    """
    network, tokenizer = load_model(model), load_tokenizer(model)
    body = network.model  # type: ignore[union-attr]
    old: int = len(body.layers)
    if not old < layers <= 2 * old:
        raise InvalidArgument(f"{model} has {old} layers: name a number from {old + 1} to {2 * old}, not {layers}")
    if folder.exists():
        raise InvalidArgument(f"{folder} exists; name another folder or delete it")
    more = layers - old
    made = torch.nn.ModuleList()
    for number, layer in enumerate(body.layers):
        made.append(layer)
        if (number + 1) * more // old > number * more // old:
            added = copy.deepcopy(layer)
            added.self_attn.o_proj.weight.zero_()
            added.mlp.down_proj.weight.zero_()
            made.append(added)
    for number, layer in enumerate(made):
        layer.self_attn.layer_idx = number
    body.layers = made
    network.config.num_hidden_layers = layers  # type: ignore[union-attr]
    save_folder(network, tokenizer, folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Add layers to a model without changing what it computes.")
    parser.add_argument("model", help="a model folder or starter")
    parser.add_argument("layers", type=int)
    parser.add_argument("folder", type=Path, help="the folder to make")
    given = parser.parse_args()
    print(deepen(given.model, given.layers, given.folder))


if __name__ == "__main__":
    main()
