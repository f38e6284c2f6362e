"""The tasks that an iteration plays, and dynamic sampling."""

from dataclasses import replace

import numpy as np
import pytest

from gagpo.agents.rollout import rollout
from gagpo.agents.setup import make_env
from gagpo.collecting.collector import usable
from gagpo.collecting.on_policy import OnPolicyCollector
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data import Turn
from gagpo.envs.pool import WorkerPool
from gagpo.settings import load


class Walker:
    """Walks left with the probability of its task's door number over ten, so that far doors fail; counts its calls."""

    def __init__(self, always=None):
        self.always = always

    def decide(self, states):
        turns = []
        for state in states:
            rng = np.random.default_rng([state.episode.seed, len(state.episode.turns)])
            word = self.always or ("left" if rng.random() < 0.75 else "stay")
            tokens = np.array([1, 2], np.int32)
            logprobs = np.zeros(2, np.float32)
            turns.append(Turn("", word, word, prompt_ids=tokens, response_ids=tokens, logprobs=logprobs))
        return turns

    def forget(self, slot):
        pass


@pytest.fixture
def collector(corridor):
    def make(algorithm="gagpo", **rollout):
        settings = load(corridor(algorithm=algorithm, rollout=rollout))
        tasks = make_env(settings.environment.id, settings.environment.kwargs).tasks("train")
        return OnPolicyCollector(settings, Schedule(settings, {"": tasks}), Controllers(settings.algorithm.controllers))

    return make


def play(collector, agent, iteration=0):
    environment = collector.settings.environment
    with WorkerPool(environment.id, environment.kwargs, workers=0) as pool:
        return collector.collect(agent, pool, iteration)


def test_each_task_once_before_any_comes_again(collector):
    result = collector(tasks=3)
    names = [result.schedule.task_at(location) for location in range(16)]
    assert sorted(names[:8]) == sorted(names[8:]) == result.schedule.tasks[0].ids and names[:8] != names[8:]
    assert play(result, Walker()).rounds == 1 and result.buffer.position == 3 and result.schedule.task_at(3) == names[3]


def test_groups_have_their_size_and_share_their_task(collector):
    results = play(collector(tasks=3, group_size=5), Walker())
    assert [(e.group, e.sample) for e in results.episodes] == [(g, s) for g in range(3) for s in range(5)]
    assert all(len({e.task for e in results.episodes if e.group == g}) == 1 for g in range(3))


def test_no_group_is_open_between_iterations(collector):
    """The buffer of on-policy training: a group is opened, sampled and taken within one collection."""
    result = collector(tasks=3)
    for iteration in (1, 2):
        play(result, Walker(), iteration)
        assert result.buffer.state_dict() == {"position": 3 * iteration, "due": []}
        assert not result.buffer.groups and not result.buffer.waiting and result.buffer.take() is None


def test_iterations_differ_and_repeat(collector):
    first, again, later = (play(collector(), Walker(), iteration) for iteration in (0, 0, 1))
    turns = [[len(e.turns) for e in results.episodes] for results in (first, again, later)]
    assert turns[0] == turns[1] != turns[2]


def test_groups_that_teach_nothing_are_replaced(collector):
    result = collector({"preset": "dapo"}, tasks=4, group_size=4)
    results = play(result, Walker())
    assert 1 < results.rounds <= 10 and result.buffer.position > 4
    groups = {e.group for e in results.episodes}
    assert len(groups) == 4
    for group in groups:
        assert len({e.success for e in results.episodes if e.group == group}) == 2
    assert len(results.sampled_episodes) == 4 * result.buffer.position
    assert len({e.group for e in results.sampled_episodes}) == result.buffer.position


def test_an_environment_that_teaches_nothing_ends_after_the_rounds(collector):
    result = collector({"preset": "dapo", "controllers": {"dynamic_sampling": {"rounds": 3}}}, tasks=2, group_size=2)
    results = play(result, Walker(always="left"))
    assert results.rounds == 3 and len(results.sampled_episodes) == 3 * 4
    assert results.episodes == results.sampled_episodes[-4:]  # what the last round played, not three batches in one


def test_a_probe_chooses_each_groups_temperature(collector):
    result = collector({"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 4}}}, tasks=3)
    for iteration in range(3):
        results = play(result, Walker(), iteration)
    assert len(results.probe_episodes) == 12 and {e.temperature for e in results.probe_episodes} == {1.0}
    by_group = {e.group: e.temperature for e in results.episodes}
    assert len(set(by_group.values())) > 1 and all(0.5 <= t <= 1.5 for t in by_group.values())
    assert {e.seed for e in results.probe_episodes}.isdisjoint({e.seed for e in results.episodes})


class Wordings:
    """Answers the samples of every task with the given texts, whole responses as with ``context.prompt=whole``."""

    def __init__(self, texts):
        self.texts = texts

    def decide(self, states):
        texts = [self.texts[state.episode.sample] for state in states]
        return [Turn.of(text, text) for text in texts]

    def forget(self, slot):
        pass


@pytest.mark.parametrize(
    ("texts", "answers"),
    [
        ([r"\boxed{10}", "The answer is 10.", r"First 5 + 5, so \boxed{10.0}", r"$x = 10$, thus \boxed{ 10 }"], 1),
        ([r"\boxed{10}", r"We get \boxed{10}.", r"\boxed{12}", r"No: \boxed{12}"], 2),
        ([r"\boxed{\frac{1}{2}}", r"So \boxed{0.5}", r"\boxed{1/2}", r"Half: \boxed{\dfrac{2}{4}}"], 1),
    ],
)
def test_a_probes_votes_are_answers_not_wordings(corridor, texts, answers):
    algorithm = {"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 4}}}
    environment = {"id": "gagpo/Math-v0", "kwargs": {"attempts": 1, "tools": False}}
    settings = load(corridor(algorithm=algorithm, environment=environment, rollout={"tasks": 1, "group_size": 4}))
    tasks = make_env(environment["id"], environment["kwargs"]).tasks("train")
    collector = OnPolicyCollector(
        settings, Schedule(settings, {"": tasks}), Controllers(settings.algorithm.controllers)
    )
    with WorkerPool(environment["id"], environment["kwargs"], workers=0) as pool:
        collector.collect(Wordings(texts), pool, 0)
    (probe,) = collector.controllers.agpo.state.by_task.values()
    assert probe.votes == pytest.approx(np.log(answers))


def test_replaced_tasks_are_probed_too_and_temperatures_go_by_task(collector):
    algorithm = {"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 4}, "dynamic_sampling": {"rounds": 4}}}
    result = collector(algorithm, tasks=3, group_size=4)
    for iteration in range(4):
        results = play(result, Walker(), iteration)
        state = result.controllers.agpo.state
        assert state.by_task.keys() == {episode.task for episode in results.probe_episodes}
        assert {episode.task for episode in results.sampled_episodes} <= state.by_task.keys()
        for episode in results.sampled_episodes:
            assert episode.temperature == result.controllers.temperatures(1.0, [episode.task])[0]


def test_a_probe_that_failed_leaves_its_task_alone(collector):
    result = collector({"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 4}}}, tasks=3)
    play(result, Walker())
    calls = []

    def breaking(agent, pool, jobs, **options):
        calls.append(jobs)
        episodes, clock = rollout(agent, pool, jobs, **options)
        if len(calls) == 1:  # the probe
            for episode in episodes:
                episode.outcome = "failed" if episode.group == 1 else episode.outcome
        return episodes, clock

    result.rollout = breaking
    names = [
        result.schedule.task_at(location) for location in range(result.buffer.position, result.buffer.position + 3)
    ]
    results = play(result, Walker(), 1)
    temperature = {episode.task: episode.temperature for episode in results.episodes}
    assert temperature[names[1]] == 1.0 and temperature[names[0]] != 1.0
    assert result.controllers.agpo.state.by_task.keys() == {names[0], names[2]}


def test_episodes_keep_what_the_env_showed_last(collector):
    for episode in play(collector(), Walker()).episodes:
        location, door = episode.end_state.split(">")
        assert episode.end_observation == f"You stand at {location}. Go to door {door}."
        assert episode.success == (location == door)


def test_broken_and_empty_episodes_are_left_out(collector):
    results = play(collector(), Walker())
    broken = replace(results.episodes[0], outcome="failed")
    empty = replace(results.episodes[1], turns=[])
    assert usable([broken, empty, results.episodes[2]]) == [results.episodes[2]]
