"""Updates from episodes in a file: ``python updates.py FOLDER``, with torchrun's environment variables.

Sampling is left out: a draw within the rounding of two ranks' sums picks another token, and the runs diverge from
there. FOLDER has ``cases.json``, {case: {sections of a config}}, and ``logprobs.npz``, the sampled log-probabilities of
each iteration; the first rank writes ``of-N.pt`` with the weights, optimiser states and metrics of each case.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import yaml

from gagpo.controllers import Controllers
from gagpo.data import Episode, Turn, build_rows
from gagpo.distributed.ranks import Ranks, joined
from gagpo.distributed.states import names_of, optimizer_tensors
from gagpo.learning import learner, optimizer, packing
from gagpo.learning.policy import load_policy
from gagpo.model.weights import gather
from gagpo.settings import load
from gagpo.settings.formats import with_formats

EPSILON = 1e-6  # AdamW's, above the rounding of gradients that are zero
ITERATIONS = 2
LONGEST = 9  # response tokens
GROUPS = (2, 7, 3, 5)  # episodes of each task group


def episodes(iteration, logprobs=None):
    """Uneven episodes: 1 to 6 turns of 1 to 9 tokens, some without the earlier turns in their prompt."""
    rng = np.random.default_rng(iteration)
    batch = []
    location = 0
    for group, samples in enumerate(GROUPS):
        for sample in range(samples):
            turns, history, position = [], [], 0
            success = bool((sample + group) % 3 == 0)
            for _ in range(rng.integers(1, 7)):
                new_ids = rng.integers(5, 250, rng.integers(2, 12)).tolist()
                response_ids = rng.integers(5, 250, rng.integers(1, LONGEST + 1))
                turn = Turn(
                    f"room {position}",
                    "go",
                    "go",
                    reward=-0.1 * int(rng.integers(2)),
                    invalid="refused" if rng.random() < 0.1 else "",
                    state=str(position),
                    prompt_ids=np.asarray([3, *history, *new_ids] if sample % 3 else [3, *new_ids], np.int32),
                    response_ids=response_ids.astype(np.int32),
                    logprobs=np.zeros(len(response_ids), np.float32),
                )
                if logprobs is not None:
                    turn = replace(turn, logprobs=logprobs[location : location + len(response_ids)].astype(np.float32))
                location += len(response_ids)
                turns.append(turn)
                history += [*new_ids, *response_ids]
                position = max(0, position + int(rng.choice([-1, 1, 1])))
            turns[-1] = replace(turns[-1], reward=turns[-1].reward + 2.0 * success)
            outcome = "terminated" if success else "truncated"
            batch.append(
                Episode(
                    f"task-{group}",
                    group=group,
                    sample=sample,
                    turns=turns,
                    success=success,
                    outcome=outcome,
                    temperature=1.0,
                    end_state=str(position),
                    end_observation=f"room {position}",
                )
            )
    return batch


def learner_of(folder, name, case, ranks, with_policy=lambda policy: policy):
    path = Path(folder) / f"{name}-{ranks.world_size}-{ranks.rank}.yaml"
    path.write_text(yaml.safe_dump(case))
    settings = with_formats(load(path), "float32", "float32")
    segments = (settings.algorithm.controllers, settings.training.target_kl, settings.optimizer.scale_by_groups)
    policy = with_policy(load_policy(settings, None, ranks=ranks))
    return learner.Learner(settings, policy, Controllers(*segments), ranks)


def save_logprobs(folder, case):
    """Write the log-probabilities of every iteration's tokens: the policy's, moved as if by earlier updates."""
    scorer = learner_of(folder, "scorer", case, Ranks())
    columns = {}
    for iteration in range(ITERATIONS):
        batch = episodes(iteration)
        tokens = sum(len(turn.response_ids) for episode in batch for turn in episode.turns)
        noise = np.random.default_rng(iteration).normal(0, 0.15, tokens)
        columns[str(iteration)] = np.minimum(noise - scorer.updater.score(build_rows(batch), tokens)[0], -1e-3)
    np.savez(Path(folder) / "logprobs.npz", **columns)


def updated(folder, name, case, ranks):
    """Weights, optimiser states and metrics after the case's updates."""
    trained = learner_of(folder, name, case, ranks)
    with np.load(Path(folder) / "logprobs.npz") as logprobs:
        batches = [episodes(iteration, logprobs[str(iteration)]) for iteration in range(ITERATIONS)]
    metrics = [trained.learn(batch, iteration).metrics for iteration, batch in enumerate(batches)]
    names = names_of(trained.model, trained.critic)
    tensors = {f"weight {name}": tensor.detach() for name, tensor in names.items()}
    tensors |= {f"state {name}": tensor for name, tensor in optimizer_tensors(trained.optimizer, names).items()}
    return {"tensors": {name: gather(tensor).clone() for name, tensor in tensors.items()}, "metrics": metrics}


def update_all(folder, ranks):
    """Every case with ``ranks``; ``rows`` in a case's name turns shared prefixes off."""
    cases = json.loads((Path(folder) / "cases.json").read_text())
    results = {}
    with patch.object(optimizer, "EPSILON", EPSILON):
        for name, case in cases.items():
            with patch.object(packing, "is_flat", lambda model, shared="rows" not in name: shared):
                results[name] = updated(folder, name, case, ranks)
    if ranks.first:
        torch.save(results, Path(folder) / f"of-{ranks.world_size}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined() as all_ranks:
        update_all(sys.argv[1], all_ranks)
