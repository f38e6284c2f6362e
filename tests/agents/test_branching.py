"""Branches: the same tree again, the same text put back as replayed, and worlds that are not what they were."""

import json
import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest

import gagpo.envs.testing
from gagpo.agents.agent import LanguageAgent, RandomAgent
from gagpo.agents.branching.forks import Branching, choose_forks
from gagpo.agents.branching.rollout import branched_rollout, share_turns
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.episodes import Call, Episode, Turn
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.envs.pool import Pool
from gagpo.envs.tools import ToolCall
from gagpo.envs.tools.storeroom import StoreroomEnv

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
DOORS = ["door-01", "door-05"]
BY = ("visits", "outcome", "entropy", "uniform")


class Counting:
    """Plays as another agent; counts the turns that it was asked for."""

    def __init__(self, agent):
        self.agent, self.asked = agent, 0

    def decide(self, states):
        self.asked += len(states)
        return self.agent.decide(states)

    def forget(self, slot):
        self.agent.forget(slot)


def language_agent(tiny, history="full"):
    model, tokenizer = tiny
    context = Context(tokenizer, STYLES["plain"], history=history)
    return LanguageAgent(TransformersEngine(model, tokenizer), context, Sampling(max_tokens=4))


def play(agent, branch, tasks=DOORS, samples=6, max_turns=8, workers=0, seed=3, **options):
    with Pool(CORRIDOR, {"max_turns": max_turns}, workers=workers) as pool:
        return branched_rollout(agent, pool, group_jobs(tasks, samples, seed), branch=branch, **options)[0]


def bytes_of(episodes):
    tokens = [
        turn.prompt_ids.tobytes() + turn.response_ids.tobytes() + turn.logprobs.tobytes()
        for episode in episodes
        for turn in episode.turns
    ]
    return json.dumps([episode.record() for episode in episodes]), tokens


def require_tree(episodes):
    known = {(one.group, one.sample): one for one in episodes}
    for one in episodes:
        if one.parent is None:
            assert one.fork == 0
            continue
        parent = known[one.group, one.parent]
        assert parent.sample < one.sample and parent.fork < one.fork < len(parent.turns)
        assert all(mine is theirs for mine, theirs in zip(one.turns[: one.fork], parent.turns, strict=False))
        if one.own:  # the decision is the parent's, taken again
            assert one.own[0].observation == parent.turns[one.fork].observation
            assert one.own[0].prompt_ids.tolist() == parent.turns[one.fork].prompt_ids.tolist()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_group_is_a_tree_and_the_same_one_again(tiny, by, rounds):
    agent = Counting(language_agent(tiny))
    episodes = play(agent, Branching(3, by, rounds))
    assert [(one.group, one.sample) for one in episodes] == [(group, sample) for group in (0, 1) for sample in range(6)]
    require_tree(episodes)
    assert sum(one.parent is not None for one in episodes) == 6
    assert agent.asked == sum(len(one.own) for one in episodes) < sum(len(one.turns) for one in episodes)
    assert bytes_of(play(language_agent(tiny), Branching(3, by, rounds))) == bytes_of(episodes)
    assert bytes_of(play(language_agent(tiny), Branching(3, by, rounds), workers=2)) == bytes_of(episodes)


@pytest.mark.parametrize("history", ["full", 1])
def test_the_prompt_of_a_branch_is_its_parents_token_for_token(tiny, history):
    episodes = play(language_agent(tiny, history), Branching(4, "uniform", 2))
    require_tree(episodes)
    if history == "full":
        for one in episodes:
            for before, after in zip(one.turns, one.turns[1:], strict=False):
                shared = np.concatenate([before.prompt_ids, before.response_ids])
                assert after.prompt_ids[: len(shared)].tolist() == shared.tolist()


def test_tries_from_the_start_are_those_of_a_group_without_branches(tiny):
    branched = play(language_agent(tiny), Branching(2, "visits"), concurrency=1)
    with Pool(CORRIDOR, {"max_turns": 8}, workers=0) as pool:
        plain, _ = rollout(language_agent(tiny), pool, group_jobs(DOORS, 6, 3), concurrency=1)
    assert bytes_of([one for one in branched if one.sample < 4]) == bytes_of([one for one in plain if one.sample < 4])


@pytest.mark.parametrize("rounds", [1, 2])
def test_replayed_branches_are_byte_identical_to_restored_ones(tiny, rounds, monkeypatch):
    restored = play(language_agent(tiny), Branching(3, "entropy", rounds))
    monkeypatch.setattr(gagpo.envs.testing.CorridorEnv, "can_restore", False)
    with pytest.warns(UserWarning, match="branches replay the actions") as said:
        replayed = play(language_agent(tiny), Branching(3, "entropy", rounds))
    assert len(said) == 1
    assert {one.replayed for one in restored} == {0}
    assert all(one.replayed == one.fork for one in replayed)
    for one in replayed:
        one.replayed = 0
    assert bytes_of(replayed) == bytes_of(restored)


def test_without_lockstep_and_with_processes_the_tree_is_whole(tiny):
    episodes = play(language_agent(tiny), Branching(3, "uniform", 3), workers=2, lockstep=False)
    require_tree(episodes)
    assert all(one.outcome != "failed" for one in episodes)


@pytest.mark.parametrize("can_restore", [True, False])
def test_a_world_that_is_not_what_it_was_costs_the_branch_alone(monkeypatch, can_restore):
    env = gagpo.envs.testing.CorridorEnv
    monkeypatch.setattr(env, "can_restore", can_restore)
    whole, begun = env._look, []

    def drifting(self, valid=True):
        outcome = whole(self, valid)
        if len(begun) > 4 and (self.turn or can_restore):  # after the four tries from the start
            outcome.state += "!"
        return outcome

    def begin(self, task, whole_begin=env.begin):
        begun.append(task)
        return whole_begin(self, task)

    monkeypatch.setattr(env, "_look", drifting)
    monkeypatch.setattr(env, "begin", begin)
    seen = []
    with pytest.MonkeyPatch.context() as quiet:
        quiet.setattr("warnings.warn", lambda *_, **__: None)
        episodes = play(RandomAgent(), Branching(2, "uniform"), ["door-00"], on_finish=seen.append)
    assert [one.outcome == "failed" for one in episodes] == [False] * 4 + [True] * 2
    assert all("the branch was given up: before turn" in one.info["error"] for one in episodes[4:])
    assert all(not one.own for one in episodes[4:]) and len(seen) == 6


def test_a_group_of_single_turns_has_no_place_to_branch_at():
    episodes = play(RandomAgent(), Branching(3, "entropy"), max_turns=1)
    assert all(one.parent is None and len(one.turns) == 1 for one in episodes)


def test_a_broken_worker_brings_a_branch_back_to_its_fork(tiny):
    """A worker is killed while branches are under way: they begin again at their forks, with the same turns before."""
    agent = language_agent(tiny)
    whole, killed = agent.decide, []

    def decide(states):
        if not killed and any(state.episode.parent is not None and state.episode.own for state in states):
            killed.append(pool.processes[0])
            os.kill(killed[0], signal.SIGKILL)
        return whole(states)

    agent.decide = decide
    with Pool(CORRIDOR, {"max_turns": 8}, workers=1, max_restarts=2) as pool:
        episodes, _ = branched_rollout(agent, pool, group_jobs(DOORS, 6, 3), branch=Branching(3, "uniform"))
    require_tree(episodes)
    assert killed and any(one.restarts for one in episodes if one.parent is not None)
    assert all(one.outcome != "failed" for one in episodes)


def try_of(sample, states, success, surprise=1.0, **branch):
    turns = [Turn("", "", "", state=state, logprobs=np.full(2, -surprise, np.float32)) for state in states]
    return Episode("a task", sample=sample, success=success, outcome="terminated", turns=turns, **branch)


def chosen(tries, by, jobs=1):
    forks = choose_forks(tries, group_jobs(["a task"], jobs, 0), by, {})
    return [(forks[number].parent.sample, forks[number].turn) for number in range(jobs)]


def test_where_branches_begin():
    tries = [try_of(0, "abc", True), try_of(1, "abd", False), try_of(2, "ab", False, 3.0), try_of(3, "ae", False, 2.0)]
    assert set(chosen(tries, "visits", 3)) == {(0, 2), (1, 2), (3, 1)}  # c, d and e were met once
    (first,) = chosen(tries, "outcome")
    assert first in {(0, 1), (1, 1), (2, 1)}  # one of the three tries through b succeeded
    assert chosen(tries, "entropy") == [(2, 1)]
    assert chosen([*tries, try_of(4, "aab", False, 1.0, parent=2, fork=1)], "entropy") == [(2, 1)]  # .05 nats less
    assert len(set(chosen(tries, "uniform", 40))) == 6
    tries[0].outcome = "failed"
    assert all(sample for sample, _ in chosen(tries, "uniform", 40))


def test_a_branch_of_a_branch_has_the_try_that_played_the_turn_as_its_parent():
    tries = [try_of(0, "abcd", True), try_of(1, "abxyz", True, parent=0, fork=2)]
    assert set(chosen(tries, "uniform", 60)) == {(0, 1), (0, 2), (0, 3), (1, 3), (1, 4)}


def test_rounds_are_dealt():
    assert Branching(3, rounds=2).dealt(8) == [5, 2, 1]
    assert Branching(3, rounds=5).dealt(8) == [5, 1, 1, 1]
    assert Branching(9).dealt(4) == [1, 3]
    assert Branching(2).dealt(1) == [1]


def test_records_and_ranks_keep_what_a_branch_is(tiny):
    episodes = play(language_agent(tiny), Branching(3, "uniform", 2))
    back = [Episode.from_record(json.loads(json.dumps(one.record(tokens=True)))) for one in episodes]
    assert [(one.parent, one.fork, one.replayed) for one in back] == [
        (one.parent, one.fork, one.replayed) for one in episodes
    ]
    assert all("fork" not in one.record() for one in episodes if one.parent is None)
    apart, _ = unpacked(packed(episodes, {}))
    require_tree(apart)
    assert bytes_of(apart) == bytes_of(episodes)
    share_turns([])


HOSTILE = {
    "fork": (9, "shared turns"),
    "parent": ("zero", "a whole number"),
    "replayed": (-1, "a whole number"),
}


@pytest.mark.parametrize("key", HOSTILE)
def test_a_record_whose_branch_cannot_be_is_refused(key):
    value, words = HOSTILE[key]
    record = try_of(1, "ab", True, parent=0, fork=1).record() | {key: value}
    with pytest.raises(InvalidArgument, match=words):
        Episode.from_record(record)


class Caller:
    """Makes several calls a turn in the storeroom, one of which cannot be read."""

    def decide(self, states):
        return [self.turn(state) for state in states]

    def turn(self, state):
        _, first, second = state.episode.task.split("-")
        if not state.episode.turns:
            made = [ToolCall("price", {"item": thing}).text for thing in (first, second)]
            return Turn.calling("prices", [Call(made[0]), Call("", "Error: no call."), Call(made[1])])
        if len(state.episode.turns) == 1:
            return Turn.calling("nothing", [Call("", "There is no call.")])
        return Turn.acting(state.info["expert_action"])

    def forget(self, slot):
        pass


@pytest.mark.parametrize("restorable", [True, False], ids=["put back", "replayed"])
def test_turns_of_several_calls_are_put_back_and_replayed(monkeypatch, restorable):
    monkeypatch.setattr(StoreroomEnv, "can_restore", restorable)
    with Pool("gagpo/Storeroom-v0", {"expert": True}, workers=0) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jobs = group_jobs(["shelf-lamp-rope", "total-vase-drum"], 4, 1)
        episodes, _ = branched_rollout(Caller(), pool, jobs, branch=Branching(3, "uniform", 2))
    require_tree(episodes)
    branches = [one for one in episodes if one.parent is not None]
    assert len(branches) == 6 and all(one.outcome == "terminated" and one.success for one in episodes)
    for one in branches:
        actions = sum(max(1, len(turn.calls)) for turn in one.turns[: one.fork])
        assert one.replayed == (0 if restorable else actions)
        (whole,) = [other for other in episodes if (other.group, other.sample) == (one.group, 0)]
        assert [turn.observation for turn in one.turns] == [turn.observation for turn in whole.turns]


def test_a_replay_looks_at_every_answer_and_at_what_a_turn_pays(monkeypatch):
    """The world changes its mind about a call in the middle of a turn, or about what the turn pays."""
    monkeypatch.setattr(StoreroomEnv, "can_restore", False)
    original = StoreroomEnv.call
    for change in ({"observation": "It is not for sale."}, {"reward": 0.25}):
        asked = []

        def call(self, tool, arguments, change=change, asked=asked):
            outcome = original(self, tool, arguments)
            asked.append(tool)
            return replace(outcome, **change) if len(asked) == 5 else outcome  # four calls of the first try, then again

        monkeypatch.setattr(StoreroomEnv, "call", call)
        with Pool("gagpo/Storeroom-v0", {"expert": True}, workers=0) as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jobs = group_jobs(["shelf-lamp-rope"], 2, 1)
            episodes, _ = branched_rollout(Caller(), pool, jobs, branch=Branching(1, "uniform"))
        assert episodes[1].outcome == "failed"
        said = "had said 'The lamp costs" if "observation" in change else "the world pays 0.25, and had paid 0"
        assert said in episodes[1].info["error"]
