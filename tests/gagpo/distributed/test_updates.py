"""Two ranks with uneven rows and tokens update a policy as one process does, for every preset and every option."""

import json

import numpy as np
import pytest
import torch

from gagpo.algorithms import PRESETS
from gagpo.data import build_rows
from gagpo.distributed.ranks import Ranks
from gagpo.learning.packing import Packing, normaliser_of
from gagpo.learning.rank_parts import shard_rows
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.distributed import updates
from tests.gagpo.distributed.conftest import start_ranks

KL = {"coefficient": 0.05}
AGPO_TERMS = {"skewness": 1.0, "votes": 1.0}


def algorithm(preset, **cells):
    return {"algorithm": {"preset": preset, **cells}}


def training(preset="gagpo", optimizer=None, **keys):
    """A case that changes the training or the optimiser, with KL and if the preset has one, a critic."""
    return {**algorithm(preset, kl=KL), "training": keys, "optimizer": optimizer or {}}


CASES = {
    **{preset: algorithm(preset) for preset in PRESETS},
    **{
        f"{preset}, {estimator}": algorithm(preset, kl={**KL, "estimator": estimator})
        for preset in ("dapo", "gspo", "ppo", "ppo_turn", "starpo_s")
        for estimator in ("k1", "k2", "k3")
    },
    **{
        f"{preset}, critic {number}": algorithm(preset, kl=KL, critic=critic)
        for preset in ("ppo", "ppo_turn", "starpo_s")
        for number, critic in enumerate(
            ({"clip": None}, {"clip": 0.001, "learning_rate": 1e-2}, {"coefficient": 10.0, "learning_rate": 1e-2})
        )
    },
    **{
        f"gagpo {option} {value}": algorithm("gagpo", credit={option: value})
        for option, values in {
            "norm": ("batch", "state", "scale_only", "none"),
            "proxy": ("outcome", "graph"),
            "scope": ("batch",),
            "leave_one_out": (True,),
            "bootstrap_truncated": (True,),
            "episode_weight": (0.5,),
            "macro_actions": (True,),
        }.items()
        for value in values
    },
    **{f"{preset} norm": algorithm(preset, credit={"norm": "mean"}) for preset in ("gigpo", "hgpo", "graphgpo")},
    **{f"{preset} turns": algorithm(preset, credit={"statistics": "turn"}) for preset in ("gigpo", "graphgpo")},
    **{f"agpo {spread}": algorithm("agpo_adaptive", credit={"dispersion": spread}) for spread in ("mad", "iqr")},
    "grpo of the population": algorithm("grpo", credit={"ddof": 0}),
    "sum of credits": algorithm("graph_sum", credit={"unit": "none"}),
    **{f"gate {gate}": algorithm("grpo", gate=gate) for gate in ("log_clip", "sapo", "cispo", "dppo", "none")},
    "gate dppo by kl": algorithm("grpo", gate={"name": "dppo", "divergence": "kl"}),
    **{f"{mean}": algorithm("gagpo", kl=KL, aggregation=mean) for mean in ("sequence_mean", "constant")},
    **{
        f"{name} mean of actions": algorithm("gagpo", kl=KL, aggregation={"name": name, "per": "action"})
        for name in ("geometric", "power")
    },
    "product of ratios": algorithm("gagpo", ratio_pool="sum"),
    "gradients of tokens": algorithm("gagpo", ratio_gradient="token"),
    "entropy": algorithm("ppo_turn", kl=KL, entropy=0.01),
    **{
        f"correction {name}, {epochs}": {
            **algorithm("ppo_turn", kl=KL, correction={"name": name}),
            "training": {"epochs": epochs},
        }
        for name in ("recompute", "tis", "icepop", "sequence")
        for epochs in (1, 2)
    },
    **{
        f"apmpo {exponent} {per}": algorithm(
            "apmpo", controllers={"apmpo": {"exponent": exponent, "radius": radius, "per": per}}
        )
        for exponent, radius, per in (
            ("linear", "mean", "group"),
            ("exponential", "deviation", "group"),
            ("exponential", "fixed", "batch"),
        )
    },
    "agpo's radius": algorithm("grpo", kl=KL, controllers={"agpo": {"probe": 2, "radius": AGPO_TERMS}}),
    "overlong": algorithm("dapo", controllers={"overlong": {"buffer": 6}}),
    "trust region": training("ppo_turn", target_kl=1e-6),
    "no trust region": training("ppo_turn", target_kl=None),
    "clipped gradient": training("ppo_turn", {"max_grad_norm": 0.01}),
    "decay": training("ppo_turn", {"weight_decay": 0.1, "warmup_iterations": 2, "lr_scheduler": "cosine"}),
    "rate by groups": training("ppo_turn", {"scale_by_groups": True}),
    "one step": training("ppo_turn", minibatches=1),
    "steps of a group": training("ppo_turn", minibatches=4),
    "steps of a row": training("ppo_turn", minibatches=40),  # the other rank reads nothing but padding
    "micro-batches of a row": training("ppo_turn", microbatch_tokens=1),
    "small micro-batches": training("ppo_turn", microbatch_tokens=64),
    "rows": training("ppo_turn"),
    "small micro-batches of rows": training("ppo_turn", microbatch_tokens=64),
    "activations computed twice": training("ppo_turn", gradient_checkpointing=True),
    "host memory": training("ppo_turn", offload=True),
    "host memory, activations computed twice": training("ppo_turn", offload=True, gradient_checkpointing=True),
    **{
        f"unsharded {what}, {tokens} tokens": training("ppo_turn", microbatch_tokens=tokens, unsharded=what)
        for what in ("gradients", "all")
        for tokens in (1, 64)
    },
    "unsharded all, epochs": training("ppo", microbatch_tokens=64, unsharded="all", epochs=2),
    "adapter, unsharded all": {
        **training("ppo_turn", microbatch_tokens=64, unsharded="all"),
        "lora": {"rank": 4, "alpha": 4.0},
    },
    "adapter": {**training("ppo_turn"), "lora": {"rank": 4, "alpha": 4.0}},
    "adapter, rows": {**training("ppo"), "lora": {"rank": 4, "alpha": 4.0}},
    "penalty": {**training("ppo_turn"), "invalid_action_penalty": 0.5},
    "successes alone": {**training("ppo_turn"), "reward": "success"},
}


def config(case, model, ranks):
    """A run's settings of a case; only several processes can offload."""
    sections = {**CORRIDOR, "model": model, "optimizer": {"learning_rate": 1e-3}, **case}
    sections["optimizer"] = {"learning_rate": 1e-3, **case.get("optimizer", {})}
    sections["rollout"] = {**CORRIDOR["rollout"], "max_tokens": updates.LONGEST}
    sections["training"] = {**CORRIDOR["training"], **case.get("training", {})}
    if ranks == 1:
        sections["training"].pop("offload", None)
    return sections


@pytest.fixture(scope="module")
def results(tmp_path_factory, warm_model):
    """The results of all cases from one process, and from two ranks."""
    return compare(tmp_path_factory.mktemp("updates"), warm_model, CASES)


def compare(folder, model, names, count=2, **more):
    """The results of the cases from one process and from ``count`` ranks; more: variables of the ranks."""
    cases = {ranks: {name: config(CASES[name], model, ranks) for name in names} for ranks in (1, count)}
    updates.save_logprobs(folder, next(iter(cases[1].values())))
    (folder / "cases.json").write_text(json.dumps(cases[1]))
    updates.update_all(folder, Ranks())
    (folder / "cases.json").write_text(json.dumps(cases[count]))
    processes = start_ranks(["-m", "tests.gagpo.distributed.updates", folder], count, **more)
    outputs = [process.communicate(timeout=1500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(outputs)
    return [torch.load(folder / f"of-{ranks}.pt") for ranks in (1, count)]


def require_same_updates(alone, together):
    """Weights agree to a hundredth of an optimiser step, as AdamW turns the rounding of tiny gradients into that."""
    assert sum(row["updates"] for row in alone["metrics"]) >= 2
    assert alone["tensors"].keys() == together["tensors"].keys()
    for tensor, value in alone["tensors"].items():
        np.testing.assert_allclose(
            value.numpy(), together["tensors"][tensor].numpy(), atol=1e-5, rtol=0, err_msg=tensor
        )
    for row, other in zip(alone["metrics"], together["metrics"], strict=True):
        assert row.keys() == other.keys()
        for metric in row.keys() - {"train_tokens_read", "train_tokens_per_second"}:  # prefixes read twice; a clock
            # EMPG divides by the range of the entropies, which magnifies their rounding.
            assert row[metric] == pytest.approx(other[metric], rel=2e-4, abs=1e-5), metric


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_updates_of_two_ranks_are_those_of_one(results, name):
    require_same_updates(*(cases[name] for cases in results))


def test_the_ranks_of_these_batches_are_uneven():
    batch = build_rows(updates.episodes(0))
    for packing in (Packing(), Packing(trees=True)):
        shards = shard_rows(batch, packing, 2)
        assert len(shards[0]) != len(shards[1])
        assert normaliser_of(shards[0]).tokens != normaliser_of(shards[1]).tokens
