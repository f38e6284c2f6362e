"""Two ranks give the weights, states, metrics and results of one process, and either resumes the other's run."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines.transformers import sample
from gagpo.runs.run_folder import RunFolder
from tests.gagpo.distributed.conftest import require_same_run, train_in_one, train_in_two, write_config

NO_KL = {"kl": {"coefficient": 0.0}}
CASES = {
    "gagpo": {"algorithm": {"preset": "gagpo", **NO_KL}},
    "lora": {
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.05}},
        "lora": {"rank": 4, "alpha": 4.0},
    },
    "a step taken back": {"algorithm": {"preset": "gagpo", **NO_KL}, "optimizer": {"learning_rate": 2e-2}},
    "ppo by tokens": {"algorithm": {"preset": "ppo", **NO_KL}},
    "group baseline, batch norm": {"algorithm": {"preset": "reinforce_plus_plus_baseline", **NO_KL}},
    "gagpo, batch norm": {"algorithm": {"preset": "gagpo", "credit": {"norm": "batch"}, **NO_KL}},
    "apmpo": {"algorithm": {"preset": "apmpo", "entropy": 0.01, **NO_KL}},  # without a success nothing else teaches
    "ppo": {"algorithm": {"preset": "ppo_turn", **NO_KL}},
    "ppo with a reference": {"algorithm": {"preset": "ppo_turn", "kl": {"coefficient": 0.01}}},
    "variance filter": {
        "algorithm": {"preset": "starpo_s", "controllers": {"variance_filter": {"share": 0.5}}, **NO_KL}
    },
    "reference": {"algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.05}}},
    "dynamic sampling": {"algorithm": {"preset": "dapo", **NO_KL}},
    "probes": {"algorithm": {"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 3}}, **NO_KL}},
    "hgpo": {"algorithm": {"preset": "hgpo", **NO_KL}},
    "correction": {
        "algorithm": {"preset": "gspo", "correction": {"name": "icepop"}, **NO_KL},
        "training": {"epochs": 5, "minibatches": 1, "microbatch_tokens": 300, "gradient_checkpointing": True},
    },
    "chunks and decay": {
        "algorithm": {"preset": "gagpo", **NO_KL},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1},
        "training": {"microbatch_tokens": 100},
    },
}
CHUNK = 4096  # logits, about a dozen tokens: the output layer is computed again in the backward pass
QUICK = ("lora", "a step taken back", "states in host memory")
CASES["activations computed twice"] = {
    "algorithm": CASES["ppo by tokens"]["algorithm"],
    "training": {"gradient_checkpointing": True},
}
CASES["states in host memory"] = {
    "algorithm": CASES["ppo by tokens"]["algorithm"],
    "training": {"offload": True},
}


def both(folder, model, names, minibatches):
    """Two iterations of each case in one process and in two; their folders by name."""
    results, jobs = {}, {1: [], 2: []}
    for name in names:
        case = {**CASES[name]}
        training = {"iterations": 2, "minibatches": minibatches, "save_every": 100, **case.pop("training", {})}
        results[name] = {count: folder / name / f"of-{count}" for count in (1, 2)}
        for count, location in results[name].items():
            reference = training if count == 2 else {**training, "offload": False}  # only several processes offload
            config = write_config(folder / name / f"config-{count}", model, training=reference, **case)
            jobs[count].append((config, location, CHUNK if name == "chunks and decay" else None))
    train_in_one(jobs[1])
    train_in_two(jobs[2], folder)
    return results


def test_a_draw_on_an_edge_picks_another_token_where_the_weights_differ_by_rounding():
    """Why sampled tokens may differ between one process and two ranks, with no fault in the update.

    The weights of both differ by less than 1e-5. A uniform number on an edge of the cumulative distribution falls on
    either side of it; a number off every edge by more than the rounding gives both the same token.
    """
    generator = torch.Generator().manual_seed(0)
    logits_V = torch.randn(50, generator=generator)
    rounded_V = logits_V + 1e-6 * torch.randn(50, generator=generator)
    sums_V, rounded_sums_V = (x.log_softmax(-1).double().exp().cumsum(-1) for x in (logits_V, rounded_V))
    edge_V, rounded_edge_V = sums_V / sums_V[-1], rounded_sums_V / rounded_sums_V[-1]
    between_V = ((edge_V + rounded_edge_V) / 2)[:-1].numpy()  # the last edge is 1, where no draw falls
    temperature_B = np.ones(len(between_V))

    def tokens(logits_V, uniform_B):
        return sample(logits_V.expand(len(uniform_B), -1), uniform_B, temperature_B)

    ids, _ = tokens(logits_V, between_V)
    rounded_ids, rounded_logprobs = tokens(rounded_V, between_V)
    assert (abs(ids - rounded_ids) == 1).all(), "the two neighbours of the edge"
    assert np.abs(logits_V.log_softmax(-1).numpy()[rounded_ids] - rounded_logprobs).max() < 1e-5, "the same policy"
    centres = np.concatenate([[0.0], between_V[:-1]]) / 2 + between_V / 2
    np.testing.assert_array_equal(tokens(logits_V, centres)[0], tokens(rounded_V, centres)[0])


@pytest.fixture(scope="module")
def quick(tmp_path_factory, warm_model):
    return both(tmp_path_factory.mktemp("quick"), warm_model, QUICK, 2)


@pytest.mark.parametrize("name", QUICK)
def test_four_updates_of_two_ranks_are_those_of_one(quick, name):
    require_same_run(quick[name][1], quick[name][2])
    if name == "a step taken back":
        assert any(row["target_kl_scale"] < 1 for row in RunFolder.open(quick[name][2]).metrics())


@pytest.fixture(scope="module")
def long(tmp_path_factory, warm_model):
    return both(tmp_path_factory.mktemp("long"), warm_model, CASES, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ten_updates_of_two_ranks_are_those_of_one(long, name):
    assert sum(row["updates"] for row in RunFolder.open(long[name][1]).metrics()) == 10
    require_same_run(long[name][1], long[name][2])


@pytest.mark.slow
@pytest.mark.parametrize("order", [(1, 2, 1), (2, 1, 2)], ids=str)
def test_a_checkpoint_goes_on_in_another_number_of_ranks_and_back(tmp_path, warm_model, order):
    names = ("lora", "ppo by tokens", "apmpo", "probes")
    jobs = []
    for name in names:
        case = {**CASES[name], "training": {"iterations": 3, "save_every": 1}}
        full = write_config(tmp_path / name, warm_model, **case)
        jobs.append((full, tmp_path / name / "whole", None))
    train_in_one(jobs)
    for stage, count in enumerate(order, 1):
        segment = []
        for name, (config, *_) in zip(names, jobs, strict=True):
            location = tmp_path / name / "parts"
            if stage > 1:
                RunFolder.open(location).change([f"training.iterations={stage}"])
            else:
                case = {**CASES[name], "training": {"iterations": 1, "save_every": 1}}
                config = write_config(tmp_path / name / "first", warm_model, **case)
            segment.append((config, location, None))
        train_in_one(segment) if count == 1 else train_in_two(segment, tmp_path)
    for name in names:
        require_same_run(tmp_path / name / "whole", tmp_path / name / "parts")
