"""The table of algorithms: presets, changed cells, and invalid combinations."""

import itertools

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from gagpo.algorithms import PRESETS, Algorithm, load, row
from gagpo.credit import Turns, advantages
from gagpo.objectives import Layout, policy_loss
from gagpo.settings import load as load_run
from gagpo.settings import parse
from tests.rejections import rejects

RUN = {"name": "a-run", "model": "a-model", "environment": {"id": "an-environment"}}
CREDITS = ["grpo", "gagpo", "reinforce_plus_plus", "ppo_turn", "ppo"]
"""Of every level (episode, turn, token), without and with a critic."""
GATES = ["clip", "log_clip", "sapo", "cispo", "dppo", "likelihood", "none"]
AGGREGATIONS = ["token_mean", "sequence_mean", "action_mean", "constant", "geometric", "power"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_is_its_name_or_its_cells(name, tmp_path):
    by_name = parse({**RUN, "algorithm": name}, "a test").algorithm
    assert by_name == load(name)
    alone = {key: cell for key, cell in row(name).items() if key != "preset"}
    assert Algorithm.model_validate(alone).model_copy(update={"preset": name}) == by_name
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**RUN, "algorithm": "gagpo"}))
    assert load_run(config, [f"algorithm={name}"]).algorithm == by_name


@pytest.mark.parametrize("name", PRESETS)
def test_settings_round_trip(name):
    algorithm = load(name)
    assert Algorithm.model_validate(algorithm.model_dump()) == algorithm
    assert Algorithm.model_validate(yaml.safe_load(yaml.safe_dump(algorithm.model_dump(mode="json")))) == algorithm


def test_gagpo_has_its_published_settings():
    algorithm = load("gagpo")
    credit = algorithm.credit
    assert (credit.gamma, credit.lam, credit.norm, credit.episode_weight) == (0.95, 0.8, "group", 0)
    assert (algorithm.ratio, algorithm.aggregation.name) == ("action", "action_mean")


def test_cells_are_changed_one_by_one():
    assert load("gagpo", {"credit": {"lam": 0.5}}).credit.gamma == 0.95
    assert load("gagpo", {"gate": {"high": 0.3}}).gate.model_dump() == {
        "name": "clip",
        "low": 0.2,
        "high": 0.3,
        "dual": None,
    }
    assert load("gigpo", {"gate": {"high": 0.3}}).gate.dual == 3.0
    assert load("gspo", {"gate": "sapo"}).gate.positive == 1.0
    # A cell of another kind starts from that kind's defaults.
    assert load("gspo", {"gate": {"name": "log_clip"}}).gate.low == 0.4
    assert load("gspo", {"gate": "clip"}).gate.low == 3e-4
    assert load("dapo", {"controllers": {"overlong": None}}).controllers.dynamic_sampling.rounds == 10
    assert Algorithm.model_validate("sapo") == load("sapo")


def test_a_preset_is_not_changed_by_its_use():
    before = {name: dict(row) for name, row in PRESETS.items()}
    load("gagpo", {"gate": {"high": 0.9}, "credit": "grpo", "critic": None})
    load("ppo", {"critic": {"clip": 0.1}, "credit": {"lam": 0.1}})
    assert before == PRESETS


def test_critics_follow_the_credit():
    assert load("ppo", {"critic": {"clip": 0.1}}).critic.clip == 0.1
    assert load("ppo_turn", {"credit": "gagpo"}).critic is None
    assert load("gagpo", {"credit": "ppo_turn"}).critic is not None


@pytest.mark.parametrize(
    ("name", "changes", "key", "names"),
    [
        ("gagpoo", {}, None, ("'gagpoo'", "nearest: gagpo")),
        ("zzz", {}, None, ("known: gagpo, grpo",)),
        ("gagpo", {"gamma": 0.9}, "algorithm.gamma", ()),
        ("gagpo", {"credit": {"gama": 0.9}}, "algorithm.credit.gama", ("nearest: gamma",)),
        ("gagpo", {"credit": {"gamma": 1.1}}, "algorithm.credit.gamma", ("at most 1",)),
        ("gagpo", {"credit": "gapo"}, "algorithm.credit", ("'gapo'", "nearest")),
        ("gagpo", {"gate": {"high": float("nan")}}, "algorithm.gate.clip.high", ()),
        ("gmpo", {"gate": "cispo"}, None, ("gate cispo", "negative")),
        ("apmpo", {"gate": "cispo"}, None, ("power", "gate cispo")),
        ("gmpo", {"credit": "gagpo"}, None, ("aggregation.per=action",)),
        ("gmpo", {"credit": "reinforce_plus_plus"}, None, ("reinforce_plus_plus",)),
        ("grpo", {"ratio_gradient": "token"}, None, ("ratio=action", "ratio=sequence")),
        ("cispo", {"ratio": "sequence", "ratio_gradient": "token"}, None, ("ratio gradient",)),
        ("apmpo", {"aggregation": "sequence_mean"}, None, ("aggregation=power", "controllers.apmpo.exponent=fixed")),
        ("apmpo", {"gate": "sapo"}, None, ("gate=clip", "controllers.apmpo.radius=fixed")),
        ("agpo_adaptive", {"gate": "sapo"}, None, ("gate=clip", "controllers.agpo.radius=null")),
        ("apmpo", {"controllers": {"apmpo": {"low": 0.5}}}, "algorithm.controllers.apmpo.high", ("0.5", "0.4")),
        (
            "apmpo",
            {"controllers": {"apmpo": {"symmetric": True, "radius": "fixed"}}},
            "algorithm.controllers.apmpo.symmetric",
            (),
        ),
        (
            "apmpo",
            {"controllers": {"apmpo": {"exponent": "fixed", "radius": "fixed"}}},
            "algorithm.controllers.apmpo.exponent",
            (),
        ),
        (
            "apmpo",
            {"controllers": {"apmpo": {"exponent": "cubic"}}},
            "algorithm.controllers.apmpo.exponent",
            ("exponential", "linear"),
        ),
        (
            "agpo_adaptive",
            {"controllers": {"agpo": {"radius": None, "temperature": None}}},
            "algorithm.controllers.agpo.temperature",
            (),
        ),
        (
            "agpo_adaptive",
            {"controllers": {"agpo": {"radius": {"low": 0.5}}}},
            "algorithm.controllers.agpo.radius.high",
            (),
        ),
        ("grpo", {"ratio_pool": "sum"}, None, ("ratio_pool=sum", "ratio=action")),
        (
            "gagpo",
            {"credit": {"proxy": "graph", "leave_one_out": True}},
            "algorithm.credit.leave_one_out",
            ("proxy=return", "proxy=outcome"),
        ),
        ("gagpo", {"credit": {"proxy": "graph", "gamma": 1.0}}, "algorithm.credit.gamma", ("below 1",)),
        ("gagpo", {"kl": {"estimator": "k4"}}, "algorithm.kl.estimator", ("'k1'", "'k2'", "'k3'")),
        ("apmpo", {"controllers": {"agpo": {}}}, None, ("clip radius",)),
        ("gmpo", {"gate": "dppo"}, None, ("geometric", "gate dppo")),
        ("dapo", {"controllers": {"variance_filter": {}}}, None, ("keep one",)),
        ("agpo_adaptive", {"gate": "none"}, None, ("gate none",)),
        ("grpo", {"critic": {}}, None, ("credit grpo", "remove critic")),
        ("ppo", {"critic": None}, None, ("credit ppo", "critic={}")),
        ("grpo", {"gate": "likelihood", "aggregation": "geometric"}, None, ("gate likelihood",)),
    ],
)
def test_invalid_combinations_are_rejected_with_a_one_line_reason(name, changes, key, names):
    with rejects(ValueError, *names, key=key) as caught:
        load(name, changes)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, ValidationError)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("apmpo", {"aggregation": "token_mean", "controllers": {"apmpo": {"exponent": "fixed"}}}),
        ("apmpo", {"gate": "sapo", "controllers": {"apmpo": {"radius": "fixed"}}}),
        ("apmpo", {"controllers": {"apmpo": {"radius": "fixed"}, "agpo": {}}}),
        ("apmpo", {"controllers": {"agpo": {"radius": None}}}),
        ("agpo_adaptive", {"gate": "sapo", "controllers": {"agpo": {"radius": None}}}),
        ("gagpo", {"ratio_pool": "sum", "credit": {"leave_one_out": True, "bootstrap_truncated": True}}),
        ("gspo_token", {"ratio_pool": "sum"}),
        ("ppo_turn", {"ratio_pool": "sum", "correction": "sequence"}),
    ],
)
def test_halves_and_ablations_can_be_combined(name, changes):
    algorithm = load(name, changes)
    assert Algorithm.model_validate(algorithm.model_dump(mode="json")) == algorithm


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("single_turn", [True, False])
def test_any_credit_goes_with_any_ratio_gate_and_aggregation(credit, single_turn):
    """On several turns and on one; what is refused is refused for the two documented reasons."""
    turns = Turns.of(
        reward_N=[0, 1, 0, 0, 0, 1] if not single_turn else [0, 1, 1],
        episode_N=[0, 0, 1, 1, 2, 2] if not single_turn else [0, 1, 2],
        group_E=[0, 0, 0],
        state_N=[0, 1, 0, 2, 0, 1] if not single_turn else [0, 0, 0],
        tokens_N=[2, 1, 3, 1, 2, 2] if not single_turn else [2, 3, 1],
        success_E=[True, False, True],
        entropy_N=np.linspace(0.1, 0.9, 3 if single_turn else 6),
        energy_K=np.linspace(0.2, 1.2, 6 if single_turn else 11),
    )
    tokens = turns.num_tokens
    turn_K = torch.arange(turns.num_turns).repeat_interleave(torch.as_tensor(turns.tokens_N))
    layout = Layout.of(turn_K, torch.as_tensor(turns.episode_N)[turn_K])
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(tokens, generator=generator)
    ran = 0
    for ratio, gate, aggregation in itertools.product(("token", "action", "sequence"), GATES, AGGREGATIONS):
        cells = {"credit": credit, "ratio": ratio, "gate": gate, "aggregation": aggregation}
        if credit.startswith("ppo"):
            cells["critic"] = {}
        try:
            algorithm = Algorithm.model_validate(cells)
        except ValidationError as error:
            assert aggregation in ("geometric", "power")
            assert gate in str(error) or "aggregation.per=action" in str(error)
            if "aggregation.per=action" not in str(error):
                continue
            cells["aggregation"] = {"name": aggregation, "per": "action"}
            if gate in ("cispo", "dppo", "likelihood"):
                continue
            algorithm = Algorithm.model_validate(cells)
        advantage = torch.as_tensor(advantages(turns, algorithm.credit, np.zeros(tokens)).per_token()).float()
        new = (old + 0.2 * torch.randn(tokens, generator=generator)).requires_grad_()
        loss, _ = policy_loss(new, old, advantage, layout, algorithm)
        loss.backward()
        assert torch.isfinite(loss)
        assert new.grad.abs().sum() > 0
        ran += 1
    assert ran == 3 * (7 * 6 - 6)
