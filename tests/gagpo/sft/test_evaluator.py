"""The panel of SFT: measures, verdicts and schedule."""

import re
from dataclasses import asdict, replace

import pytest
import torch

from gagpo.agents.rollout import rollout
from gagpo.data import Episode, Turn
from gagpo.eval.measures import REWARD, SUCCESS
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.settings import load
from gagpo.sft import evaluator as panels
from gagpo.sft import fit as supervised
from gagpo.sft.evaluator import (
    SftEvaluator,
    StepMeasure,
    SuccessTarget,
    evaluation_tasks,
    has_rewards_only,
    round_rate,
    rounds,
    success_target,
)
from gagpo.sft.run import sft

MEASURED = ["sft.steps=null"]


def episode(group, success, *turns):
    """Of a task group, with turns of (invalid, cut)."""
    result = [Turn("", "", "", invalid=invalid, cut=cut) for invalid, cut in turns]
    return Episode("t", group=group, success=success, turns=result)


def test_a_measure_counts_turns_and_groups():
    good, bad, cut = ("", False), ("refused", False), ("cut off", True)
    episodes = [episode(0, True, good), episode(0, False, bad, cut), episode(1, True, good), episode(1, True, good)]
    assert StepMeasure.of(7, episodes) == StepMeasure(7, success=0.75, invalid=0.4, cut=0.2, contrast=0.5)


def panel_of(settings, chance=0.1, shown=0.55, imitable=True):
    return SftEvaluator(settings, None, SuccessTarget(chance, shown, imitable))


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (StepMeasure(1, 0.45, 0.02, 0.0, 0.8), "^ready for RL: it knows the language of the environment"),
        (StepMeasure(1, 0.45, 0.30, 0.0, 0.8), "30 % of the turns are invalid.*set sft.steps above 4000"),
        (StepMeasure(1, 0.45, 0.02, 0.4, 0.8), "40 % of the responses are cut at rollout.max_tokens=3: raise it"),
        (StepMeasure(1, 0.35, 0.02, 0.0, 0.8), "wins 35 %, and should win 40 %.*sft.model.hidden_size"),
        (StepMeasure(1, 0.45, 0.02, 0.0, 0.1), "in only 10 % of the tasks: raise rollout.temperature"),
        (StepMeasure(1, 0.81, 0.27, 0.0, 0.4), "^ready for RL"),
        (
            StepMeasure(1, 0.99, 0.02, 0.0, 0.1),
            "wins 99 % and episodes of a task hardly differ.*raise sft.mistake_rate",
        ),
    ],
)
def test_every_fault_names_the_setting_to_change(corridor, measure, said):
    panel = panel_of(load(corridor(), MEASURED))
    panel.measures = [measure]
    assert re.search(said, panel.verdict()), panel.verdict()
    assert panel.enough == ("not ready" not in panel.verdict())


def test_mean_rewards_decide_where_no_success_is_reported(corridor):
    def graded(group, reward):
        return Episode("t", group=group, turns=[Turn("", "", "", reward=reward)])

    measure = StepMeasure.of(5, [graded(0, 0.1), graded(0, 0.3), graded(1, 0.2), graded(1, 0.2)], REWARD)
    assert measure == StepMeasure(5, success=0.0, invalid=0.0, cut=0.0, contrast=0.5, reward=pytest.approx(0.2))
    assert measure.score == measure.reward
    evaluator = SftEvaluator(load(corridor(), MEASURED), None, SuccessTarget(0.02, 0.35, measure_name=REWARD.name))
    evaluator.measures = [measure, replace(measure, step=9, reward=0.25)]
    assert evaluator.best.step == 9 and evaluator.verdict().startswith("ready for RL: most actions are valid")
    assert "step 5: mean reward 0.200 in" in evaluator.words(measure) and "wins" not in evaluator.words(measure)
    evaluator.measures = [replace(measure, reward=0.1)]
    assert "its mean reward is 0.100, and should be 0.240" in evaluator.verdict()


@pytest.mark.parametrize(("in_rewards", "measure"), [(True, REWARD), (False, SUCCESS)])
def test_work_of_earlier_versions_names_its_measure(in_rewards, measure):
    target = SuccessTarget(0.02, 0.35, measure_name=measure.name)
    assert SuccessTarget.stored(asdict(target)) == target and target.measure is measure
    assert SuccessTarget.stored({"chance": 0.02, "demonstrations": 0.35, "in_rewards": in_rewards}) == target


def test_demonstrations_without_success_are_measured_by_their_rewards():
    def demonstration(reward, success=False, **info):
        return Episode("t", turns=[Turn("", "", "", reward=reward)], success=success, info=info)

    assert has_rewards_only([demonstration(0.1), demonstration(0.5)])
    assert has_rewards_only([demonstration(0.5, True, success_assumed=True)])
    assert not has_rewards_only([demonstration(0.1), demonstration(0.5, True)])
    assert not has_rewards_only([demonstration(1.0, True), demonstration(0.0)])
    assert not has_rewards_only([])


def test_the_best_random_episodes_promise_less_than_an_expert():
    assert SuccessTarget(0.2, 1.0, imitable=False).goal(steps_are_set=False) == pytest.approx(0.4)
    assert SuccessTarget(0.2, 0.5).goal(steps_are_set=False) == pytest.approx(0.4)


def test_whoever_chooses_few_steps_leaves_the_rest_to_rl(corridor):
    few = panel_of(load(corridor(), ["sft.steps=12"]), chance=0.02, shown=1.0)
    few.measures = [StepMeasure(12, 0.32, 0.03, 0.0, 0.6)]
    assert few.verdict().startswith("ready for RL"), few.verdict()
    few.measures = [StepMeasure(12, 0.2, 0.03, 0.0, 0.6)]
    assert "should win 26 %" in few.verdict()


def test_demonstrations_count_on_the_panels_own_tasks_which_may_be_harder(corridor, monkeypatch):
    monkeypatch.setattr(panels, "TASKS", 1)
    settings = load(corridor())
    (hard,) = evaluation_tasks(settings)
    output = [Episode(hard, success=number % 2 == 0) for number in range(400)]
    remaining = [Episode("easy", success=True) for _ in range(600)]
    assert success_target(settings, output + remaining, True).demonstrations == pytest.approx(0.5, abs=0.02)
    assert success_target(settings, remaining, True).demonstrations == 1.0, "the panel's task was not demonstrated"
    mixed = [Episode("other", success=number % 2 == 0) for number in range(1000)]
    for success in (True, False):  # one demonstration says little about a task
        few = success_target(settings, [Episode(hard, success=success), *mixed], True)
        assert few.demonstrations == pytest.approx(0.5, abs=0.04)


def test_the_panel_has_training_tasks(corridor):
    assert evaluation_tasks(load(corridor())) == [f"door-{door:02d}" for door in range(8)], "none of the test split"


def test_rounds_grow_and_end_where_they_must(corridor):
    sft = load(corridor(), MEASURED).sft
    assert rounds(sft) == [100, 200, 300, 450, 675, 1012, 1518, 2277, 3415, 4000]
    assert rounds(load(corridor(), ["sft.steps=1000"]).sft) == [1000]


def test_the_rate_of_a_round_rises_stays_and_falls_before_the_panel(corridor):
    sft = load(corridor(), [*MEASURED, "sft.learning_rate=1.0"]).sft
    rates = [round_rate(sft, step) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 20) and rates[19] == rates[59] == 1.0
    assert rates[99] == pytest.approx(1 / 40) and rates[100] == pytest.approx(1 / 20)
    assert all(0 < rate <= 1 for rate in rates)


def short(monkeypatch):
    """Rounds of a few steps, eight at most, and a small panel."""
    for name, value in (("FIRST_ROUND", 3), ("TASKS", 4), ("EPISODES_PER_TASK", 2)):
        monkeypatch.setattr(panels, name, value)
    for module in (panels, supervised):
        monkeypatch.setattr(module, "MAX_STEPS", 8)


def test_training_stops_when_the_panel_finds_no_fault(corridor, tmp_path, monkeypatch):
    short(monkeypatch)
    settings = load(corridor(), [f"model={tmp_path / 'm'}", *MEASURED])
    received = []
    monkeypatch.setattr(SftEvaluator, "faults", lambda self, measure: [] if measure.step >= 6 else ["more"])
    sft(settings, quiet=True, say=received.append)
    steps = [line.split(":")[0] for line in received if line.startswith("step ")]
    assert steps == ["step 3", "step 6"]
    assert received[0].startswith("derived: ") and "RL" in received[-1]


class Interrupted(Exception):
    pass


def test_interrupted_training_with_a_panel_ends_in_the_same_weights(corridor, tmp_path, monkeypatch):
    short(monkeypatch)
    monkeypatch.setattr(supervised, "SAVE_SECONDS", 0.0)
    straight = sft(load(corridor(), [f"model={tmp_path / 'm'}", *MEASURED]), quiet=True)
    store, done = supervised._store, []

    def breaking(path, *rest):
        store(path, *rest)
        done.append(path)
        if len(done) in (2, 3):  # within a round, and just after a panel
            raise Interrupted

    monkeypatch.setattr(supervised, "_store", breaking)
    other = load(corridor(), [f"model={tmp_path / 'n'}", *MEASURED])
    for _ in range(2):
        with pytest.raises(Interrupted):
            sft(other, quiet=True)
    resumed = sft(other, quiet=True)
    assert len(done) == 8, "no step was taken twice"
    assert not list(tmp_path.glob("*.under-way"))
    weights, remaining = load_model(str(straight)).state_dict(), load_model(str(resumed)).state_dict()
    assert all(torch.equal(weights[name], remaining[name]) for name in weights)
    assert (straight / "sft.json").read_text() == (resumed / "sft.json").read_text()


def test_the_panel_needs_no_more_memory_than_sampling_in_training(corridor, monkeypatch):
    """As many episodes at once, in the same precision: what a plan counts."""
    settings = load(corridor(), ["rollout.tasks=2", "rollout.group_size=3", "engine.dtype=bfloat16"])
    observed = []

    def watched(agent, pool, jobs, concurrency):
        observed.append((concurrency, next(agent.engine.model.parameters()).dtype))
        return rollout(agent, pool, jobs, concurrency=concurrency)

    monkeypatch.setattr(panels, "rollout", watched)
    panel = SftEvaluator(settings, load_tokenizer(settings.model), SuccessTarget(0.1, 0.5))
    panel.measure(load_model(settings.model), 1)
    assert observed == [(6, torch.bfloat16)]
