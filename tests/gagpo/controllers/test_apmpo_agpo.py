"""The adaptive controllers against worked numbers, hand-computed cases and their own state."""

import json
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gagpo.algorithms import load
from gagpo.controllers import Agpo, AgpoRadius, Apmpo, Controllers, ControllerSettings
from gagpo.controllers.agpo import ProbeStatistics, agpo_radius, vote_entropy
from gagpo.credit import Turns, advantages
from tests.rejections import rejects


def episodes(successes: list[int], groups: list[int] | None = None, **more) -> Turns:
    """One turn per episode, paid 1 for success."""
    count = len(successes)
    return Turns.of(
        np.array(successes, float),
        np.arange(count),
        groups or [0] * count,
        success_E=np.array(successes, bool),
        **more,
    )


def with_apmpo(**options) -> Controllers:
    return Controllers(ControllerSettings(apmpo=Apmpo(**options)))


def with_agpo(**options) -> Controllers:
    return Controllers(ControllerSettings(agpo=Agpo(**options)))


# APMPO --------------------------------------------------------------------------------------------------------------


def test_apmpo_by_hand():
    controllers = with_apmpo()
    controllers.observe_batch(episodes([1, 0, 0, 1]))
    controls = controllers.controls()
    std = 0.5  # of the population
    assert controls.exponent == pytest.approx(math.exp(-0.4))
    assert controls.clip_high == pytest.approx(0.2 + 0.2 * math.tanh(0.5 / (std + 1e-6)))
    assert controls.clip_low is None
    assert controllers.values() == pytest.approx(
        {"apmpo_exponent": controls.exponent, "apmpo_radius": controls.clip_high}
    )


def test_apmpos_credit_has_the_population_deviation_too():
    advantage = advantages(episodes([1, 0, 0, 0]), load("apmpo").credit).advantage_N
    assert advantage == pytest.approx(np.array([0.75, -0.25, -0.25, -0.25]) / (math.sqrt(3) / 4 + 1e-6))
    assert advantages(episodes([1, 0]), load("grpo").credit).advantage_N[0] == pytest.approx(
        0.5 / (math.sqrt(0.5) + 1e-6)
    )


def test_apmpo_at_its_ends():
    controllers = with_apmpo()
    controllers.observe_batch(episodes([0, 0]))
    assert (controllers.controls().exponent, controllers.controls().clip_high) == (1.0, 0.2)
    controllers.observe_batch(episodes([1, 1]))
    assert controllers.controls().exponent == pytest.approx(math.exp(-0.8))
    assert controllers.controls().clip_high == pytest.approx(0.4)


@pytest.mark.parametrize(("form", "expected"), [("exponential", math.exp(-0.2)), ("linear", 0.8)])
def test_apmpos_exponent_by_hand(form, expected):
    controllers = with_apmpo(exponent=form, scale=0.4, radius="fixed")
    controllers.observe_batch(episodes([1, 0, 0, 1]))
    assert controllers.controls().exponent == pytest.approx(expected)
    assert controllers.controls().clip_high is None and controllers.values().keys() == {"apmpo_exponent"}


@pytest.mark.parametrize(
    ("options", "signal"),
    [
        ({}, 0.25 / (math.sqrt(3) / 4 + 1e-6)),
        ({"ddof": 1}, 0.25 / (0.5 + 1e-6)),
        ({"radius": "mean"}, 0.25),
        ({"radius": "deviation"}, 1 / (math.sqrt(3) / 4 + 1e-6)),
    ],
)
def test_apmpos_radius_by_hand(options, signal):
    controllers = with_apmpo(low=0.1, high=0.5, symmetric=True, exponent="fixed", **options)
    controllers.observe_batch(episodes([1, 0, 0, 0]))
    controls = controllers.controls()
    assert controls.clip_high == controls.clip_low == pytest.approx(0.1 + 0.4 * math.tanh(signal))
    assert controls.exponent is None


def test_apmpos_linear_radius_is_that_of_the_pseudo_code():
    controllers = with_apmpo(radius="linear", scale=1.0)
    controllers.observe_batch(episodes([1, 0, 0, 0]))
    signal = 0.25 / (math.sqrt(3) / 4 + 1e-6)
    assert controllers.controls().clip_high == pytest.approx(0.2 + 0.2 * signal)
    assert controllers.controls().exponent == pytest.approx(math.exp(-0.25))
    controllers.observe_batch(episodes([1, 1, 1, 1, 1, 1, 1, 1, 1, 0]))
    assert controllers.controls().clip_high == pytest.approx(0.2 + 0.2 * 3, abs=1e-4)  # above `high`


def test_apmpos_statistics_of_each_group():
    controllers = with_apmpo(per="group", ddof=1)
    # Groups 2, 5 and 7; a group of one has no deviation, and its radius is the largest.
    controllers.observe_batch(episodes([1, 0, 0, 0, 1], groups=[5, 5, 2, 2, 7]))
    with rejects(ValueError, key="group_K"):
        controllers.controls()
    controls = controllers.controls(torch.tensor([0, 1, 2]))
    assert controls.exponent.tolist() == pytest.approx([1.0, math.exp(-0.4), math.exp(-0.8)])
    signal = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert controls.clip_high.tolist() == pytest.approx([0.2, 0.2 + 0.2 * math.tanh(signal), 0.4])
    assert controllers.values()["apmpo_exponent"] == pytest.approx((1 + math.exp(-0.4) + math.exp(-0.8)) / 3)


def test_apmpos_exponent_goes_with_agpos_radius():
    controllers = Controllers(ControllerSettings(apmpo=Apmpo(radius="fixed"), agpo=Agpo()))
    controllers.observe_probe(episodes([1, 0, 0, 0]), ["a"])
    controllers.observe_batch(episodes([1, 1]), ["a"], 1.0)
    controls = controllers.controls()
    assert controls.exponent == pytest.approx(math.exp(-0.8))
    assert controls.clip_low == controls.clip_high == controllers.agpo.radius("a")


# AGPO ---------------------------------------------------------------------------------------------------------------


def test_agpo_radius_has_its_worked_number():
    probe = ProbeStatistics(0.0, dispersion=0.4, votes=0.7)
    assert agpo_radius(probe, 1.5 / 1.0, 0.2, AgpoRadius()) == pytest.approx(0.214, abs=5e-8)


def test_agpo_radius_with_skewness_has_its_worked_number():
    probe = ProbeStatistics(0.0, dispersion=0.4, votes=0.7, skewness=0.3)
    settings = AgpoRadius(skewness=0.2, entropy_high=2.0)
    assert agpo_radius(probe, 1.5 / 1.0, 0.2, settings) == pytest.approx(0.2057692, abs=5e-8)


def test_skewness_has_no_weight_by_default():
    skewed, even = (ProbeStatistics(0.0, 0.4, 0.7, skewness) for skewness in (9.0, 0.0))
    assert agpo_radius(skewed, 1.0, 0.2, AgpoRadius()) == agpo_radius(even, 1.0, 0.2, AgpoRadius())
    plain, weighted = with_agpo(), with_agpo(temperature={"skewness": 1.0})
    for controllers in (plain, weighted):
        controllers.observe_probe(episodes([1, 1, 0, 0]), ["a"])
        controllers.observe_probe(episodes([1, 0, 0, 0, 0, 0, 0]), ["a"])
    assert weighted.temperatures(1.0, ["a"])[0] > plain.temperatures(1.0, ["a"])[0]
    assert "agpo_skewness" not in plain.values()
    assert weighted.values()["agpo_skewness"] == pytest.approx(math.sqrt(7) * (6 / 7) ** 1.5)


def test_agpo_radius_is_bounded():
    for dispersion, votes, share, radius in ((50.0, 0.0, 1.0, 0.05), (0.0, 100.0, 9.0, 0.4), (0.0, 0.0, 9.0, 0.3)):
        assert agpo_radius(ProbeStatistics(0.0, dispersion, votes), share, 0.0, AgpoRadius()) == pytest.approx(radius)


def test_agpo_by_hand_over_two_iterations():
    controllers = with_agpo()
    assert controllers.temperatures(1.0, ["a"]) == [1.0]

    controllers.begin()
    controllers.observe_probe(episodes([1, 0, 0, 0]), ["a"])
    votes = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    first = 0.5 + votes
    assert controllers.temperatures(1.0, ["a"]) == [1.0]  # nothing to compare with yet
    controllers.observe_batch(episodes([1, 0, 0, 0]), ["a"], 2.0)
    assert controllers.controls().clip_high == pytest.approx(0.2 * (1 + 0.1 * votes) / 1.5)
    controllers.observe_update(approx_kl=0.4)
    controllers.observe_update(approx_kl=-3.0)  # counts as 0
    kl = 0.9 * (0.1 * 0.4)

    controllers.begin()
    controllers.observe_probe(episodes([1, 1, 0, 0]), ["a"])
    second = math.sqrt(1 / 3) + math.log(2)
    share = (second - first) / (first + 1e-8)
    assert controllers.temperatures(0.8, ["a"]) == pytest.approx([0.8 * (1 + 0.15 * share)])
    controllers.observe_batch(episodes([1, 1, 0, 0]), ["a"], 1.0)
    radius = 0.2 * 0.5 * (1 + 0.1 * math.log(2)) / (1 + math.sqrt(1 / 3) + 0.5 * kl)
    assert controllers.controls().clip_low == controllers.controls().clip_high == pytest.approx(radius)
    state = controllers.state_dict()["agpo"]
    assert state["uncertainty"] == pytest.approx(0.9 * first + 0.1 * second)
    assert state["entropy_reference"] == pytest.approx(0.99 * 2.0 + 0.01 * 1.0)
    assert controllers.values()["agpo_kl"] == pytest.approx(kl)


def test_each_task_has_its_own_temperature_and_radius():
    probe = episodes([1, 0, 0, 0, 1, 1, 1, 1], groups=[5, 5, 5, 5, 2, 2, 2, 2])
    apart = with_agpo()
    apart.observe_probe(probe, ["sure", "unsure"])
    apart.observe_probe(probe, ["sure", "unsure"])
    apart.observe_batch(probe, ["sure", "unsure"], 1.0)
    sure, unsure = apart.temperatures(1.0, ["sure", "unsure"])
    assert sure < 1.0 < unsure  # hotter, and held tighter
    with rejects(ValueError, key="group_K"):
        apart.controls()
    radius = apart.controls(torch.tensor([0, 1])).clip_high
    assert radius[0] == pytest.approx(0.2)
    assert radius[1] < 0.2


def test_agpo_state_is_stored_by_task_not_by_place():
    """The batch lacks the first probed task and has one that was not probed: no task gets another's radius."""
    probe = episodes([1, 0, 0, 0, 1, 1, 1, 1], groups=[0, 0, 0, 0, 1, 1, 1, 1])
    controllers = with_agpo()
    controllers.begin()
    controllers.observe_probe(probe, ["unsure", "sure"])
    controllers.observe_batch(episodes([1, 0, 0, 1], groups=[1, 1, 7, 7]), ["sure", "unknown"], 1.0)
    radius = controllers.controls(torch.tensor([0, 1])).clip_high
    assert radius.tolist() == pytest.approx([controllers.agpo.radius("sure"), 0.2])
    assert controllers.agpo.radius("unsure") != controllers.agpo.radius("sure")
    # The probe of the next iteration is abandoned: nothing of this one stays in force.
    controllers.begin()
    assert controllers.temperatures(0.9, ["unsure", "sure"]) == [0.9, 0.9]
    controllers.observe_batch(episodes([1, 0, 0, 1], groups=[1, 1, 7, 7]), ["unsure", "sure"], 1.0)
    assert controllers.controls(torch.tensor([0, 1])).clip_high.tolist() == pytest.approx([0.2, 0.2])


def test_two_groups_of_one_task_are_one_probe():
    controllers = with_agpo()
    controllers.observe_probe(episodes([1, 1, 0, 0], groups=[0, 0, 1, 1]), ["a", "a"])
    assert controllers.agpo.state.by_task["a"].votes == pytest.approx(math.log(2))


def test_agpo_entropy_is_of_each_task():
    controllers = with_agpo()
    turns = episodes([1, 0, 1, 0], groups=[0, 0, 1, 1])
    for _ in range(2):
        controllers.observe_probe(turns, ["a", "b"])
        controllers.observe_batch(turns, ["a", "b"], np.array([1.2, 0.8]))
    # The average stayed at 1: entropies 1.2 and .8 are 1.2 and .8 of it.
    radius = controllers.controls(torch.tensor([0, 1])).clip_high
    assert (radius[0] / radius[1]).item() == pytest.approx(1.5)


def test_agpo_votes_are_answers_where_given():
    controllers = with_agpo()
    controllers.observe_probe(episodes([1, 0, 0, 0], vote_E=[4, 7, 8, 9]), ["0"])
    by_task = controllers.agpo.state.by_task["0"]
    assert by_task.votes == pytest.approx(math.log(4))
    assert controllers.agpo.state.uncertainty == pytest.approx(0.5 + math.log(4))


def test_vote_entropy_by_hand():
    outcome, group = np.array([7, 7, 7, 9, 1, 1, 2, 3]), np.array([0, 0, 0, 0, 1, 1, 2, 2])
    expected = [-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), 0.0, math.log(2)]
    assert vote_entropy(outcome, group, 3) == pytest.approx(expected)


def test_averages_near_zero_restart():
    """After a probe without any uncertainty there is nothing to compare with: the temperature stays."""
    controllers = with_agpo()
    controllers.observe_probe(episodes([1, 1, 1, 1]), ["a"])
    controllers.observe_probe(episodes([1, 1, 0, 0]), ["a"])
    assert controllers.temperatures(1.0, ["a"]) == [1.0]
    assert controllers.agpo.state.uncertainty == pytest.approx(math.sqrt(1 / 3) + math.log(2))
    controllers.observe_batch(episodes([1, 1, 0, 0]), ["a"], 0.0)
    controllers.observe_batch(episodes([1, 1, 0, 0]), ["a"], 0.7)
    assert controllers.agpo.state.entropy_share == {"a": 1.0}
    assert controllers.agpo.state.entropy_reference == 0.7


def test_agpo_temperature_is_bounded():
    controllers = with_agpo()
    controllers.observe_probe(episodes([1, 0, 0, 0]), ["a"])
    controllers.observe_probe(episodes([1, 1, 0, 0]), ["a"])
    assert controllers.temperatures(1.49, ["a"]) == [1.5]


@pytest.mark.parametrize("entropy", [None, math.nan, -1.0])
def test_agpo_requires_an_entropy(entropy):
    with rejects(ValueError, key="entropy_G"):
        with_agpo().observe_batch(episodes([1, 0]), ["0"], entropy)


# State --------------------------------------------------------------------------------------------------------------


VARIANTS = [
    with_agpo,
    with_apmpo,
    lambda: with_apmpo(per="group", symmetric=True, radius="mean"),
    lambda: with_apmpo(exponent="fixed"),
    lambda: with_agpo(radius=None),
    lambda: with_agpo(temperature=None, radius={"skewness": 1.0}),
]


@pytest.mark.parametrize("make", VARIANTS)
def test_state_round_trips_through_json(make):
    probes = [episodes([1, 0, 0, 0]), episodes([1, 1, 0, 1])]

    def iteration(controllers, probe):
        controllers.observe_probe(probe, ["0"])
        controllers.observe_batch(probe, ["0"], 1.3 + probe.return_E.sum())
        controllers.observe_update(0.02)

    straight, resumed = make(), make()
    iteration(straight, probes[0])
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert resumed.controls() == straight.controls()
    for controllers in (straight, resumed):
        iteration(controllers, probes[1])
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.values() == straight.values()


def test_a_state_of_other_controllers_is_rejected():
    with rejects(ValueError, "['agpo']", "['apmpo']"):
        with_apmpo().load_state_dict(with_agpo().state_dict())


def test_without_controllers_nothing_changes():
    controllers, turns = Controllers(), episodes([1, 1])
    controllers.observe_probe(turns, ["0"])
    controllers.observe_batch(turns)
    controllers.observe_update(0.1)
    assert controllers.controls().clip_high is None
    assert controllers.temperatures(0.7, ["a", "b"]) == [0.7, 0.7]
    assert controllers.keep(turns).all()
    assert controllers.shape(turns, 9) is turns
    assert (controllers.probe_episodes, controllers.sampling_rounds) == (0, 1)
    assert (controllers.values(), controllers.state_dict()) == ({}, {})


@pytest.mark.parametrize(
    "settings",
    [
        {"apmpo": {"exponent": "fixed", "radius": "fixed"}},
        {"apmpo": {"radius": "fixed", "symmetric": True}},
        {"apmpo": {"exponent": "linear", "scale": 1.0}},
        {"apmpo": {"radius": "linear", "symmetric": True}},
        {"apmpo": {"scale": -0.1}},
        {"apmpo": {"low": 0.5}},
        {"apmpo": {"high": 1.2, "symmetric": True}},
        {"apmpo": {"ddof": 2}},
        {"agpo": {"probe": 1}},
        {"agpo": {"radius": None, "temperature": None}},
        {"agpo": {"radius": {"low": 0.5}}},
        {"agpo": {"radius": {"high": 1.5}}},
        {"agpo": {"radius": {"entropy_low": 2.0}}},
        {"agpo": {"temperature": {"low": 2.0}}},
        {"agpo": {"temperature": {"rate": 0.0}}},
        {"agpo": {"dispersion": "range"}},
        {"agpo": {"unknown": 1}},
        {"dynamic_sampling": {"rounds": 0}},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        ControllerSettings.model_validate(settings)
