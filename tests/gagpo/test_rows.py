"""Every algorithm against its paper's formulas in ``tests/oracles``."""

import ast
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from gagpo.algorithms import PRESETS, load
from gagpo.controllers import Controllers, ControllerSettings
from gagpo.credit import Turns
from gagpo.objectives import Layout, policy_loss, value_loss
from tests.gagpo.rows import assert_same_loss, credit_of, flat, turns_of
from tests.oracles.batch import random_batch
from tests.oracles.episode_level import agpo_adaptive, dppo, maxrl
from tests.oracles.turn_level import graphgpo, milegpo, ppo, starpo_s

ORACLES = Path(__file__).parents[1] / "oracles"
PAPERS = {
    path.stem: importlib.import_module(f"tests.oracles.{path.parent.name}.{path.stem}")
    for path in ORACLES.glob("*_level/*.py")
}
OTHERS = {
    "gspo_token": ("gspo.advantages", "gspo.token_loss"),
    "reinforce_plus_plus": ("reinforce.advantages", "reinforce.loss"),
    "reinforce_plus_plus_baseline": ("reinforce.baseline_advantages", "reinforce.loss"),
    "optimal_token_baseline": ("token_baseline.advantages", "token_baseline.loss"),
    "graph_value": ("graph_value.advantages", "gagpo.loss"),
    "graph_macro": ("graph_macro.advantages", "gagpo.loss"),
    "graph_sum": ("graph_sum.advantages", "gagpo.loss"),
    "ppo": ("ppo.advantages", "ppo.loss"),
}
"""Algorithms whose oracles are not the functions ``advantages`` and ``loss`` of the module of their name."""
SEEDS = range(3)


def oracle(name):
    """The paper's advantages and loss."""
    locations = OTHERS.get(name, (f"{name}.advantages", f"{name}.loss"))
    modules = (location.split(".") for location in locations)
    return [getattr(PAPERS[module], function) for module, function in modules]


def test_oracles_do_not_import_the_package():
    for path in ORACLES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "gagpo" for name in names), path


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PRESETS)
def test_an_algorithm_matches_its_oracle_in_value_and_gradient(name, seed):
    batch, algorithm = random_batch(seed), load(name).resolved(512)
    paper_advantages, paper_loss = oracle(name)
    expected = paper_advantages(batch)
    controllers = Controllers(algorithm.controllers)
    turns = turns_of(batch)
    advantage = credit_of(batch, algorithm, controllers)
    assert advantage == pytest.approx(flat(expected), abs=1e-9)

    more = ()
    if name == "agpo_adaptive":
        tasks, more = ["1", "4"], ({},)
        controllers.begin()
        controllers.observe_probe(turns, tasks)
        controllers.observe_batch(turns, tasks, 1.0)
        for group in (1, 4):
            probe = [episode.success for episode in batch if episode.group == group]
            more[0][group] = agpo_adaptive.radius(probe, 1.0, 1.0, 0.0)
    else:
        controllers.observe_batch(turns)
    loss = paper_loss(batch, expected, *more)
    assert_same_loss(batch, algorithm, advantage, loss, controllers)


OPTIONS = [
    ("gagpo", {"lam": 0.0}),
    ("gagpo", {"gamma": 1.0, "lam": 1.0}),
    ("gagpo", {"norm": "batch"}),
    ("gagpo", {"norm": "none"}),
    ("gagpo", {"norm": "state"}),
    ("gagpo", {"norm": "scale_only"}),
    ("gagpo", {"episode_weight": 0.5}),
    ("gagpo", {"leave_one_out": True}),
    ("gagpo", {"leave_one_out": True, "norm": "none", "lam": 1.0}),
    ("gagpo", {"proxy": "outcome"}),
    ("gagpo", {"proxy": "outcome", "leave_one_out": True, "scope": "batch"}),
    ("gagpo", {"bootstrap_truncated": True}),
    ("gagpo", {"bootstrap_truncated": True, "leave_one_out": True, "norm": "none"}),
    ("gagpo", {"bootstrap_truncated": True, "proxy": "graph", "norm": "none"}),
    ("gagpo", {"bootstrap_truncated": True, "proxy": "outcome", "scope": "batch", "norm": "none"}),
    ("gagpo", {"macro_actions": True}),
    ("gagpo", {"macro_actions": True, "proxy": "outcome", "scope": "batch", "norm": "batch"}),
    ("gagpo", {"scope": "batch"}),
    ("gagpo", {"scope": "batch", "norm": "state"}),
    ("gagpo", {"scope": "batch", "proxy": "graph", "norm": "none"}),
    ("gigpo", {"norm": "mean"}),
    ("gigpo", {"step_weight": 0.4}),
    ("hgpo", {"depth": 1}),
    ("hgpo", {"norm": "mean"}),
    ("hgpo", {"alpha": 0.0, "depth": 3}),
    ("hgpo", {"weight_offset": 2}),
    ("hgpo", {"drop_zero": True}),
    ("hgpo", {"weight_offset": 2, "drop_zero": True, "norm": "mean"}),
    ("gigpo", {"statistics": "turn"}),
    ("gigpo", {"statistics": "turn", "norm": "mean"}),
    ("graphgpo", {"step_weight": 0.3}),
    ("graph_sum", {"weights": [0.5, -2.0]}),
    ("agpo_asymmetric", {"delta": 0.3}),
    ("agpo_asymmetric", {"bonus": 0.0}),
    ("agpo_asymmetric", {"delta": 2.0, "bonus": -0.5}),
    ("reinforce_plus_plus", {"gamma": 0.9}),
    ("ppo", {"gamma": 0.9, "lam": 0.7}),
    ("ppo_turn", {"gamma": 1.0, "lam": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_credits_options_in_value_and_gradient(name, options):
    paper_advantages, paper_loss = oracle(name)
    for seed in range(8):
        batch, algorithm = random_batch(seed), load(name, {"credit": options})
        expected = paper_advantages(batch, **options)
        actual = credit_of(batch, algorithm)
        assert actual == pytest.approx(flat(expected), abs=1e-9)
        assert_same_loss(batch, algorithm, actual, paper_loss(batch, expected))


WEBSHOP = {"norm": "mean", "retain_coverage": 0.5, "rest": 0.5, "eta": 1.0, "retain_branches": True}


@pytest.mark.parametrize("seed", range(12))
def test_milegpo_with_its_settings_for_webshop(seed):
    batch = random_batch(seed)
    actual = credit_of(batch, load("milegpo", {"credit": WEBSHOP}))
    assert actual == pytest.approx(flat(milegpo.advantages(batch, **milegpo.WEBSHOP)), abs=1e-9)


RECIPE = {"gamma": 0.1, "unreachable": "farther", "penalised": True, "statistics": "turn"}


@pytest.mark.parametrize("seed", range(12))
def test_graphgpos_released_recipe_with_invalid_actions(seed):
    batch = random_batch(seed)
    actual = credit_of(batch, load("graphgpo", {"credit": RECIPE}))
    assert actual == pytest.approx(flat(graphgpo.recipe(batch)), abs=1e-9)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dppo_token_by_token_in_value_and_gradient(divergence, seed):
    generator = torch.Generator().manual_seed(seed)
    new, old = (-2 * torch.rand(40, generator=generator, dtype=torch.float64) for _ in range(2))
    new, advantage = new.requires_grad_(), torch.randn(40, generator=generator, dtype=torch.float64)
    delta = 0.15 if divergence == "tv" else 0.05
    old = torch.cat([old[:-1], new.detach()[-1:] - 5])  # a ratio beyond the cap
    terms = [dppo.term(*each, divergence, delta) for each in zip(new, old, advantage.tolist(), strict=True)]
    expected = -torch.stack(terms).mean()
    algorithm = load("dppo", {"gate": {"divergence": divergence}, "aggregation": "token_mean"})
    actual, _ = policy_loss(new, old, advantage, Layout.of(torch.arange(40)), algorithm)
    assert actual.item() == pytest.approx(expected.item(), abs=1e-12)
    gradients = [torch.autograd.grad(loss, new)[0] for loss in (actual, expected)]
    assert gradients[0].numpy() == pytest.approx(gradients[1].numpy(), abs=1e-12)
    assert 5 < int((gradients[0] == 0).sum()) < 35


@pytest.mark.parametrize("seed", SEEDS)
def test_max_rl_matches_the_derived_estimator(seed):
    batch = random_batch(seed)
    actual = flat(maxrl.advantages(batch))
    derived = {}
    for group in {episode.group for episode in batch}:
        members = [episode for episode in batch if episode.group == group]
        weights = maxrl.score_weights([float(episode.success) for episode in members])
        derived |= {id(episode): len(members) * w for episode, w in zip(members, weights, strict=True)}
    expected = [derived[id(episode)] for episode in batch for turn in episode.turns for _ in turn.new]
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("by", ["groups", "spread"])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_variance_filter(by, share, seed):
    batch = [episode for offset in range(0, 30, 10) for episode in random_batch(seed + offset)]
    for location, episode in enumerate(batch):
        episode.group += 10 * (location // 8)
    spread = starpo_s.spreads(batch)
    chosen = (starpo_s.top_share if by == "groups" else starpo_s.top_sum)(spread, share)
    settings = ControllerSettings(variance_filter={"by": by, "share": share})
    retained = Controllers(settings).keep(turns_of(batch))
    assert {episode.group for episode, keep in zip(batch, retained, strict=True) if keep} == chosen
    assert all(keep == (episode.group in chosen) for episode, keep in zip(batch, retained, strict=True))


def test_the_critics_loss_is_ppos():
    rng = np.random.default_rng(0)
    value, old, target = rng.normal(size=(3, 20))
    actual, _ = value_loss(torch.tensor(value), torch.tensor(old), torch.tensor(target), clip=0.2)
    assert actual.item() == pytest.approx(ppo.value_loss(value, old, target), abs=1e-12)


def test_the_temperature_of_adaptive_agpo():
    controllers = Controllers(load("agpo_adaptive").controllers)
    first, second = [True, False, False, False], [True, True, False, False]
    for probe in (first, second):
        turns = Turns.of([0.0] * 4, range(4), [0] * 4, success_E=probe)
        controllers.observe_probe(turns, ["a"])
    usual = 0.5 + agpo_adaptive.vote_entropy(first)
    assert controllers.temperatures(1.0, ["a"]) == pytest.approx([agpo_adaptive.temperature(second, usual)])
