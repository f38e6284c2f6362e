"""A warm start measures itself: what its panel counts, says and decides, and when it is played."""

import re

import pytest
import torch

from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.model import load_model
from gagpo.settings import SettingsError, load
from gagpo.warm_start import fit as supervised
from gagpo.warm_start import panel as panels
from gagpo.warm_start.panel import Expected, Measure, Panel, panel_tasks, round_rate, rounds, shown_at_panel
from gagpo.warm_start.run import warm_start

MEASURED = ["warm_start.steps=null", "warm_start.most_steps=12"]


def episode(group, success, *turns):
    """Of a task group, with turns of (invalid, cut)."""
    made = [Turn("", "", "", invalid=invalid, cut=cut) for invalid, cut in turns]
    return Episode("t", group=group, success=success, turns=made)


def test_a_measure_counts_turns_and_groups():
    good, bad, cut = ("", False), ("refused", False), ("cut off", True)
    episodes = [episode(0, True, good), episode(0, False, bad, cut), episode(1, True, good), episode(1, True, good)]
    assert Measure.of(7, episodes) == Measure(7, success=0.75, invalid=0.4, cut=0.2, contrast=0.5)


def panel_of(settings, chance=0.1, shown=0.55, imitable=True):
    return Panel(settings, None, Expected(chance, shown, imitable))


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (Measure(1, 0.45, 0.02, 0.0, 0.8), "ready for reinforcement: it speaks the world's language"),
        (Measure(1, 0.45, 0.30, 0.0, 0.8), "30 % of the turns are invalid.*raise warm_start.most_steps"),
        (Measure(1, 0.45, 0.02, 0.4, 0.8), "40 % of the answers are cut at rollout.max_tokens=3: raise it"),
        (Measure(1, 0.35, 0.02, 0.0, 0.8), "wins 35 % where its demonstrations promise 40 %.*warm_start.model.width"),
        (Measure(1, 0.45, 0.02, 0.0, 0.1), "tries differ in 10 % of the tasks only: raise rollout.temperature"),
        (Measure(1, 0.81, 0.27, 0.0, 0.4), "^ready for reinforcement"),
        (Measure(1, 0.99, 0.02, 0.0, 0.1), "wins 99 % and tries hardly differ.*raise warm_start.wander"),
    ],
)
def test_every_shortcoming_names_the_setting_to_change(corridor, measure, said):
    panel = panel_of(load(corridor(), MEASURED))
    panel.measures = [measure]
    assert re.search(said, panel.verdict()), panel.verdict()
    assert panel.enough == ("not ready" not in panel.verdict())


def test_with_fixed_steps_their_number_is_what_to_raise(corridor):
    panel = panel_of(load(corridor()))
    panel.measures = [Measure(20, 0.0, 0.9, 0.0, 0.0)]
    assert "raise warm_start.steps, then" in panel.verdict() and "most_steps" not in panel.verdict()


def test_the_lucky_tries_of_chance_promise_less_than_those_of_an_expert():
    assert Expected(0.2, 1.0, imitable=False).goal == pytest.approx(0.4)
    assert Expected(0.2, 0.5).goal == pytest.approx(0.4)


def test_what_was_shown_is_counted_at_the_panels_own_tasks(corridor):
    """They may be harder than the others, and then nobody who imitates can do better than was shown there."""
    settings = load(corridor(), ["warm_start.panel=1"])
    (hard,) = panel_tasks(settings)
    shown = [Episode(hard, success=number % 2 == 0) for number in range(400)]
    others = [Episode("easy", success=True) for _ in range(600)]
    assert shown_at_panel(settings, shown + others) == pytest.approx(0.5, abs=0.02)
    assert shown_at_panel(load(corridor(), ["warm_start.panel=0"]), shown + others) == pytest.approx(0.8)
    assert shown_at_panel(settings, others) == 1.0, "none of them was shown"


def test_a_few_demonstrations_that_went_wrong_by_chance_promise_hardly_less(corridor):
    """A hasty player fails every second time: what sixteen tasks were shown once is no measure of them."""
    settings = load(corridor(), ["warm_start.panel=1"])
    (task,) = panel_tasks(settings)
    others = [Episode("other", success=number % 2 == 0) for number in range(1000)]
    for success in (True, False):
        assert shown_at_panel(settings, [Episode(task, success=success), *others]) == pytest.approx(0.5, abs=0.04)


def test_the_panel_is_of_training_tasks(corridor):
    settings = load(corridor())
    tasks = panel_tasks(settings)
    assert tasks == [f"door-{door:02d}" for door in range(8)], "no door of the split test is among them"
    assert len(panel_tasks(load(corridor(), ["warm_start.panel=3"]))) == 3


def test_rounds_come_ever_less_often_and_end_where_they_must(corridor):
    warm = load(corridor(), ["warm_start.steps=null", "warm_start.most_steps=1000"]).warm_start
    assert rounds(warm) == [100, 200, 300, 450, 675, 1000]
    assert rounds(load(corridor(), ["warm_start.steps=1000"]).warm_start) == [250, 500, 750, 1000]
    assert rounds(load(corridor()).warm_start) == [20]
    assert rounds(load(corridor(), ["warm_start.panel=0"]).warm_start) == []


def test_the_rate_of_a_round_rises_stays_and_falls_before_the_panel(corridor):
    changes = ["warm_start.steps=null", "warm_start.most_steps=1000", "warm_start.learning_rate=1.0"]
    warm = load(corridor(), changes).warm_start
    rates = [round_rate(warm, step) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 20) and rates[19] == rates[59] == 1.0
    assert rates[99] == pytest.approx(1 / 40) and rates[100] == pytest.approx(1 / 20)
    assert all(0 < rate <= 1 for rate in rates)


def test_a_measured_warm_start_needs_a_panel(corridor):
    with pytest.raises(SettingsError, match="only a panel can say when to stop"):
        load(corridor(), ["warm_start.steps=null", "warm_start.panel=0"])


def test_it_stops_as_soon_as_the_panel_is_content(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "FIRST", 4)
    settings = load(corridor(), [f"model={tmp_path / 'm'}", *MEASURED])
    heard = []
    monkeypatch.setattr(Panel, "faults", lambda self, measure: [] if measure.step >= 8 else ["more"])
    warm_start(settings, quiet=True, say=heard.append)
    steps = [line.split(":")[0] for line in heard if line.startswith("step ")]
    assert steps == ["step 4", "step 8"]
    assert heard[0].startswith("derived from the world: ") and "left for reinforcement" in heard[-1]


class Interrupted(Exception):
    pass


def test_a_measured_warm_start_that_is_interrupted_ends_in_the_same_weights(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "FIRST", 4)
    changes = [*MEASURED, "warm_start.save_minutes=1e-9"]
    straight = warm_start(load(corridor(), [f"model={tmp_path / 'm'}", *changes]), quiet=True)
    store, done = supervised._store, []

    def breaking(path, *rest):
        store(path, *rest)
        done.append(path)
        if len(done) in (2, 4, 9):  # within a round, and just after a panel
            raise Interrupted

    monkeypatch.setattr(supervised, "_store", breaking)
    other = load(corridor(), [f"model={tmp_path / 'n'}", *changes])
    for _ in range(3):
        with pytest.raises(Interrupted):
            warm_start(other, quiet=True)
    resumed = warm_start(other, quiet=True)
    weights, others = load_model(str(straight)).state_dict(), load_model(str(resumed)).state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert (straight / "warm_start.json").read_text() == (resumed / "warm_start.json").read_text()
