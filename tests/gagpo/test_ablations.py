"""Options of the papers against their formulas in ``tests/oracles``, each in value and gradient."""

from dataclasses import replace

import numpy as np
import pytest

from gagpo.algorithms import load
from gagpo.controllers import Controllers
from gagpo.credit import Turns, advantages
from tests.gagpo.rows import assert_same_loss, credit_of, flat, turns_of
from tests.oracles.batch import group_relative, per_turn, random_batch
from tests.oracles.episode_level import agpo_adaptive, apmpo, dapo, gspo, sapo
from tests.oracles.turn_level import gagpo, gigpo, graph_sum, graphgpo, milegpo, ppo_turn

SEEDS = range(4)

# Credits ------------------------------------------------------------------------------------------------------------

MILEGPO = [
    ({"reward": 3.0, "lam": 0.7}, {"c": 3.0, "lam": 0.7}),
    ({"omega": 0.6, "potential_gamma": 0.9}, {"omega": 0.6, "gamma_phi": 0.9}),
    ({"milestone_weight": 0.3, "trap_weight": 1.0}, {"w_plus": 0.3, "w_minus": 1.0}),
    (
        {"success_weight": 0.4, "coverage_weight": 0.2, "degree_weight": 2.0},
        {"w_s": 0.4, "w_m": 0.2, "w_c": 2.0},
    ),
    ({"failure_weight": 0.2, "revisit_weight": 3.0}, {"w_f": 0.2, "w_l": 3.0}),
    (
        {"distance_progress": 0.1, "success_progress": 2.0, "failure_progress": 0.5},
        {"a_d": 0.1, "a_s": 2.0, "a_f": 0.5},
    ),
    (
        {"branch_weight": 0.3, "progress_weight": 2.0, "context_weight": 0.6},
        {"w_bc": 0.3, "w_pg": 2.0, "w_pcc": 0.6},
    ),
    ({"contextual": False}, {"pcc": False}),
    ({"weighted": False}, {"rcs": False}),
    ({"step_weight": 0.4, "episode_weight": 2.0}, {"step_weight": 0.4, "episode_weight": 2.0}),
]


@pytest.mark.parametrize(("options", "constants"), MILEGPO, ids=str)
def test_milegpos_weights(options, constants):
    changed = 0
    for seed in range(6):
        batch, algorithm = random_batch(seed), load("milegpo", {"credit": {"eta": 1.0, "rest": 0.5, **options}})
        expected = milegpo.advantages(batch, eta=1.0, rho=0.5, **constants)
        advantage = credit_of(batch, algorithm)
        assert advantage == pytest.approx(flat(expected), abs=1e-9)
        assert_same_loss(batch, algorithm, advantage, milegpo.loss(batch, expected))
        changed += advantage != pytest.approx(flat(milegpo.advantages(batch, eta=1.0, rho=0.5)), abs=1e-9)
    assert changed


@pytest.mark.parametrize("seed", SEEDS)
def test_graphgpos_reward(seed):
    batch, algorithm = random_batch(seed), load("graphgpo", {"credit": {"reward": 2.0, "norm": "mean"}})
    expected = graphgpo.advantages(batch, divide=False, c=2.0)
    advantage = credit_of(batch, algorithm)
    assert advantage == pytest.approx(flat(expected), abs=1e-9)
    assert_same_loss(batch, algorithm, advantage, graphgpo.loss(batch, expected))


@pytest.mark.parametrize(
    "options", [{}, {"proxy": "graph", "lam": 0.0}, {"scope": "batch", "bootstrap_truncated": True}], ids=str
)
@pytest.mark.parametrize("seed", SEEDS)
def test_gagpos_macro_actions(seed, options):
    rng = np.random.default_rng(seed)
    batch = [  # with so many states that some are visited once
        replace(episode, turns=[replace(turn, state=int(rng.integers(20))) for turn in episode.turns])
        for episode in random_batch(seed)
    ]
    algorithm = load("gagpo", {"credit": {"macro_actions": True, **options}})
    expected = gagpo.advantages(batch, macro_actions=True, **options)
    advantage = credit_of(batch, algorithm)
    assert advantage == pytest.approx(flat(expected), abs=1e-9)
    assert advantage != pytest.approx(flat(gagpo.advantages(batch, **options)), abs=1e-3)
    assert_same_loss(batch, algorithm, advantage, gagpo.loss(batch, expected))


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_of_other_credits(seed, divide):
    options = {"credits": ["grpo", {"name": "graphgpo", "episode_weight": 0}, "gigpo"], "weights": [0.5, 2.0, -1.0]}
    options["unit"] = "deviation" if divide else "none"
    batch, algorithm = random_batch(seed), load("graph_sum", {"credit": options})
    by_token = [group_relative(batch), None, gigpo.advantages(batch)]
    segments = [
        [[turn[0] for turn in row] for row in segment] if segment else graph_sum.graph_steps(batch)
        for segment in by_token
    ]
    expected = per_turn(batch, graph_sum.weighted(segments, options["weights"], divide))
    advantage = credit_of(batch, algorithm)
    assert advantage == pytest.approx(flat(expected), abs=1e-9)
    assert_same_loss(batch, algorithm, advantage, gagpo.loss(batch, expected))


@pytest.mark.parametrize("seed", SEEDS)
def test_gigpo_with_near_equal_observations(seed):
    """States 0 and 1 have texts that differ in one character of twelve, state 2 has another."""
    texts = ["you see it 0", "you see it 1", "a dark cellar"]
    batch, algorithm = random_batch(seed), load("gigpo", {"credit": {"similarity": 0.9}})
    turns = turns_of(batch).with_columns(text_N=[texts[turn.state] for episode in batch for turn in episode.turns])
    expected = gigpo.advantages(batch, same=lambda a, b: (a == 2) == (b == 2))
    advantage = advantages(turns, algorithm.credit).per_token()
    assert advantage == pytest.approx(flat(expected), abs=1e-9)
    assert_same_loss(batch, algorithm, advantage, gigpo.loss(batch, expected))


# Ratio and gate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "paper"), [("gagpo", gagpo), ("gspo", gspo), ("ppo_turn", ppo_turn)])
def test_the_product_of_token_ratios(name, paper, seed):
    batch, algorithm = random_batch(seed, spread=0.1), load(name, {"ratio_pool": "sum"})
    expected = paper.advantages(batch)
    assert_same_loss(batch, algorithm, credit_of(batch, algorithm), paper.loss(batch, expected, ratio_pool="sum"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("temperatures", [{"positive": 2.0}, {"negative": 0.5}, {"positive": 0.25, "negative": 4.0}])
def test_sapos_temperatures(temperatures, seed):
    batch, algorithm = random_batch(seed), load("sapo", {"gate": temperatures})
    expected = sapo.advantages(batch)
    assert_same_loss(batch, algorithm, credit_of(batch, algorithm), sapo.loss(batch, expected, **temperatures))


# DAPO ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", [{"buffer": 2}, {"factor": 0.5}, {"buffer": 3, "factor": 4.0}])
def test_the_buffer_and_factor_of_the_overlong_penalty(options, seed):
    """At a response limit of 4 tokens, which the batch's longest turns reach."""
    batch, algorithm = random_batch(seed), load("dapo", {"controllers": {"overlong": options}})
    controllers = Controllers(algorithm.controllers)
    expected = dapo.advantages(batch, **{"limit": 4, "buffer": 1, **options})
    advantage = credit_of(batch, algorithm, controllers, limit=4)
    assert advantage == pytest.approx(flat(expected), abs=1e-9)
    assert_same_loss(batch, algorithm, advantage, dapo.loss(batch, expected))


# APMPO ---------------------------------------------------------------------------------------------------------------

APMPO = [
    {"exponent": "linear"},
    {"exponent": "linear", "scale": 0.95, "per": "group"},
    {"scale": 0.3},
    {"radius": "mean"},
    {"radius": "deviation"},
    {"radius": "deviation", "ddof": 1, "per": "group"},
    {"low": 0.05, "high": 0.1},
    {"symmetric": True},
    {"symmetric": True, "per": "group", "radius": "mean"},
    {"per": "group"},
    {"ddof": 1},
]


def after_batch(batch, algorithm) -> Controllers:
    controllers = Controllers(algorithm.controllers)
    controllers.observe_batch(turns_of(batch))
    return controllers


@pytest.mark.parametrize("options", APMPO, ids=str)
def test_apmpos_options(options):
    for seed in SEEDS:
        batch, algorithm = random_batch(seed), load("apmpo", {"controllers": {"apmpo": options}})
        loss = apmpo.loss(batch, apmpo.advantages(batch), **options)
        assert_same_loss(batch, algorithm, credit_of(batch, algorithm), loss, after_batch(batch, algorithm))


@pytest.mark.parametrize("per", ["batch", "group"])
@pytest.mark.parametrize("seed", SEEDS)
def test_apmpos_radius_alone_goes_with_another_aggregation(per, seed):
    cells = {"aggregation": "sequence_mean", "controllers": {"apmpo": {"exponent": "fixed", "per": per}}}
    batch, algorithm = random_batch(seed), load("apmpo", cells)
    loss = apmpo.radius_alone_loss(batch, apmpo.advantages(batch), per)
    assert_same_loss(batch, algorithm, credit_of(batch, algorithm), loss, after_batch(batch, algorithm))


@pytest.mark.parametrize("seed", SEEDS)
def test_apmpos_exponent_alone_goes_with_any_radius_and_gate(seed):
    batch = random_batch(seed)
    adaptive = load("apmpo", {"gate": {"high": 0.28}, "controllers": {"apmpo": {"radius": "fixed"}}})
    loss = apmpo.loss(batch, apmpo.advantages(batch), radius=0.28)
    assert_same_loss(batch, adaptive, credit_of(batch, adaptive), loss, after_batch(batch, adaptive))

    # A fixed exponent next to the adaptive radius, and without any controller.
    power = {"name": "power", "exponent": 0.6}
    fixed = load("apmpo", {"aggregation": power, "controllers": {"apmpo": {"exponent": "fixed"}}})
    loss = apmpo.loss(batch, apmpo.advantages(batch), exponent=0.6)
    assert_same_loss(batch, fixed, credit_of(batch, fixed), loss, after_batch(batch, fixed))
    soft = load("apmpo", {"aggregation": power, "gate": "sapo", "controllers": {"apmpo": None}})
    loss = apmpo.power_mean_of_sapo_loss(batch, apmpo.advantages(batch), 0.6)
    assert_same_loss(batch, soft, credit_of(batch, soft), loss)


# AGPO, adaptive ------------------------------------------------------------------------------------------------------

RADIUS = {
    "base": 0.3,
    "low": 0.02,
    "high": 0.9,
    "entropy_low": 0.8,
    "entropy_high": 3.0,
    "votes": 0.4,
    "dispersion": 0.3,
    "kl": 1.5,
    "skewness": 0.2,
}
FORMULA = {"base": 0.3, "bounds": (0.02, 0.9), "entropy_bounds": (0.8, 3.0), "weights": (0.4, 0.3, 1.5, 0.2)}
"""``RADIUS`` as the oracle takes it."""


def probed(batch, algorithm, entropy=(0.6, 1.4), approx_kl=0.3) -> Controllers:
    """Controllers that have seen two iterations of one batch; entropy: of the two tasks in the second."""
    controllers, turns, tasks = Controllers(algorithm.controllers), turns_of(batch), ["1", "4"]
    controllers.observe_batch(turns, tasks, 1.0)
    controllers.observe_update(approx_kl)
    controllers.begin()
    controllers.observe_probe(turns, tasks)
    controllers.observe_batch(turns, tasks, np.array(entropy))
    return controllers


def successes(batch, group) -> list[bool]:
    return [episode.success for episode in batch if episode.group == group]


@pytest.mark.parametrize("skewness", ["authors", "g1"])
@pytest.mark.parametrize("dispersion", ["std", "mad", "iqr"])
@pytest.mark.parametrize(("settings", "formula"), [({}, {}), (RADIUS, FORMULA)])
def test_agpos_radius(dispersion, skewness, settings, formula):
    type_names = {"dispersion": dispersion, "skewness": skewness}
    cells = {"credit": {"dispersion": dispersion}, "controllers": {"agpo": {"radius": settings, **type_names}}}
    for seed in SEEDS:
        batch, algorithm = random_batch(seed), load("agpo_adaptive", cells)
        controllers = probed(batch, algorithm)
        radii = {
            group: agpo_adaptive.radius(successes(batch, group), entropy, 1.0, 0.1 * 0.3, **type_names, **formula)
            for group, entropy in ((1, 0.6), (4, 1.4))
        }
        expected = agpo_adaptive.advantages(batch, dispersion)
        advantage = credit_of(batch, algorithm)
        assert advantage == pytest.approx(flat(expected), abs=1e-9)
        assert_same_loss(batch, algorithm, advantage, agpo_adaptive.loss(batch, expected, radii), controllers)


@pytest.mark.parametrize("seed", SEEDS)
def test_agpos_temperature_alone_leaves_the_gates_radius(seed):
    cells = {"gate": {"low": 0.1, "high": 0.1}, "controllers": {"agpo": {"radius": None}}}
    batch, algorithm = random_batch(seed), load("agpo_adaptive", cells)
    controllers = probed(batch, algorithm)
    assert not controllers.measures  # nor is any entropy or divergence measured for it
    expected = agpo_adaptive.advantages(batch)
    loss = agpo_adaptive.loss(batch, expected, {1: 0.1, 4: 0.1})
    assert_same_loss(batch, algorithm, credit_of(batch, algorithm), loss, controllers)
    assert controllers.values().keys() == {"agpo_temperature", "agpo_dispersion", "agpo_vote_entropy"}


TEMPERATURES = [
    ({}, {}, {}),
    ({"skewness": 0.7}, {}, {"weights": (1.0, 1.0, 0.7)}),
    ({"skewness": 2.0}, {"skewness": "g1"}, {"weights": (1.0, 1.0, 2.0), "skewness": "g1"}),
    ({"dispersion": 0.0, "votes": 3.0}, {}, {"weights": (0.0, 3.0, 0.0)}),
    ({"gain": 0.9, "low": 0.8, "high": 1.1}, {}, {"gain": 0.9, "bounds": (0.8, 1.1)}),
    ({"dispersion": 2.0}, {"dispersion": "mad"}, {"weights": (2.0, 1.0, 0.0), "dispersion": "mad"}),
    ({}, {"dispersion": "iqr"}, {"dispersion": "iqr"}),
]


@pytest.mark.parametrize(("settings", "kinds", "formula"), TEMPERATURES, ids=str)
def test_agpos_temperature(settings, kinds, formula):
    rng = np.random.default_rng(3)
    cells = {"controllers": {"agpo": {"radius": None, "temperature": {**settings, "rate": 0.3}, **kinds}}}
    controllers, average = Controllers(load("agpo_adaptive", cells).controllers), None
    of_uncertainty = {name: value for name, value in formula.items() if name not in ("gain", "bounds")}
    for _ in range(6):
        success_GE = rng.random((2, 7)) < [[0.3], [0.8]]
        turns = Turns.of(np.zeros(14), range(14), np.repeat([0, 1], 7), success_E=success_GE.ravel())
        controllers.observe_probe(turns, ["a", "b"])
        if average is not None and average > 1e-8:
            expected = [agpo_adaptive.temperature(row, average, 0.9, **formula) for row in success_GE.tolist()]
            assert controllers.temperatures(0.9, ["a", "b"]) == pytest.approx(expected)
        mean = sum(agpo_adaptive.uncertainty(row, **of_uncertainty) for row in success_GE.tolist()) / 2
        average = mean if average is None or average <= 1e-8 else 0.7 * average + 0.3 * mean


def test_agpos_radius_alone_samples_at_the_base_temperature():
    batch = random_batch(0)
    controllers = probed(batch, load("agpo_adaptive", {"controllers": {"agpo": {"temperature": None}}}))
    assert controllers.temperatures(0.7, ["1", "4"]) == [0.7, 0.7]
    assert controllers.measures and "agpo_temperature" not in controllers.values()
    assert controllers.agpo.radius("1") == pytest.approx(agpo_adaptive.radius(successes(batch, 1), 0.6, 1.0, 0.1 * 0.3))
