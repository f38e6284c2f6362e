"""Load models with several ranks: ``python loading_worker.py FOLDER``, with torchrun's environment variables.

FOLDER has ``cases.json``, {case: {sections of a config}}; the first rank writes ``loaded.pt``.
"""

import json
import sys
from pathlib import Path

import torch

from gagpo.distributed.ranks import joined
from gagpo.model.sharding import unsharded_copy
from gagpo.model.slices import unread_files
from gagpo.model.weights import gather
from gagpo.training.sampler import fill_engine_model
from tests.gagpo.distributed.updates import learner_of


def loaded(folder, name, case, ranks):
    """The weights, gathered, of the policy, its reference, its average and the engine's copy."""
    copies = []

    def copied(policy):
        read_in_slices = unread_files(policy.model) is not None
        copies.extend([unsharded_copy(policy.model, "float32"), read_in_slices])
        return policy

    learner = learner_of(folder, name, case, ranks, copied)
    copy, read_in_slices = copies
    if read_in_slices:
        fill_engine_model(learner.settings, copy, learner.model, ranks)
    reference = learner.policy.reference
    models = {"policy": learner.model} | ({"reference": reference} if reference is not None else {})
    weights = {
        type_name: {key: gather(value.detach()).clone() for key, value in model.named_parameters()}
        for type_name, model in models.items()
    }
    buffers = dict(copy.named_buffers())
    attention = [model.config._attn_implementation for model in (learner.model, copy)]
    return {
        "slices": read_in_slices,
        "weights": weights | {"copy": dict(copy.named_parameters())},
        "buffers": buffers,
        "attention": attention,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined() as ranks:
        cases = json.loads((Path(sys.argv[1]) / "cases.json").read_text())
        results = {}
        for name, case in cases.items():
            try:
                results[name] = loaded(sys.argv[1], name, case, ranks)
            except ValueError as error:  # of both ranks, or the other one would wait
                results[name] = str(error)
        if ranks.first:
            torch.save(results, Path(sys.argv[1]) / "loaded.pt")
