"""Rollouts play every job exactly once, in order, even if environments break."""

import time

import numpy as np
import pytest

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.agent import EpisodeState, ExpertAgent, LanguageAgent, RandomAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import MAX_DIFF, Clock, RolloutLoop, apply_event, group_jobs, rollout
from gagpo.data import Episode, Turn
from gagpo.envs.pool import Event, WorkerPool
from gagpo.model.flat.slots import SlotCache
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"
DOORS = ["door-01", "door-05", "door-03"]


def language_agent(tiny, **kwargs):
    model, tokenizer = tiny
    context = Context(tokenizer, find_prompt("plain"), **kwargs)
    return LanguageAgent(TransformersEngine(model, tokenizer), context, Sampling(max_tokens=4))


def test_a_turn_keeps_what_its_action_changed_within_a_bound():
    state = EpisodeState(0, Episode("t", turns=[Turn("o", "a", "a")]))
    ended = {"diff": "x" * (MAX_DIFF + 1), "success": True, "verdict": "right"}
    assert apply_event(state, Event(0, "step", "", 1.0, True, False, ended)) == "terminated"
    assert state.episode.turns[0].diff == "x" * MAX_DIFF
    assert state.episode.info == {"verdict": "right"}  # not once more in the episode


def transcript(episodes):
    return [[(t.observation, t.response, t.reward, t.valid, t.state) for t in e.turns] for e in episodes]


def test_the_expert_walks_to_every_door_and_groups_share_their_start():
    with WorkerPool(CORRIDOR, {"expert": True}, workers=0) as pool:
        episodes, _ = rollout(ExpertAgent(), pool, group_jobs(DOORS, 3, seed=4))
    assert [(e.task, e.group, e.sample) for e in episodes] == [(d, g, s) for g, d in enumerate(DOORS) for s in range(3)]
    assert all(e.success and e.outcome == "terminated" and e.reward == 1.0 for e in episodes)
    for group in range(3):
        assert len({e.turns[0].observation for e in episodes if e.group == group}) == 1


@pytest.mark.parametrize("concurrency", [1, 4, 100])
def test_episodes_do_not_depend_on_concurrency(concurrency):
    with WorkerPool(CORRIDOR, {"max_turns": 12}, workers=0) as pool:
        all_at_once, _ = rollout(RandomAgent(), pool, group_jobs(DOORS, 3, seed=4))
        some, _ = rollout(RandomAgent(), pool, group_jobs(DOORS, 3, seed=4), concurrency=concurrency)
    assert transcript(some) == transcript(all_at_once)


def test_lockstep_rollouts_of_a_model_repeat_bit_for_bit_in_real_processes(tiny):
    runs = []
    for workers in (1, 2):
        with WorkerPool(CORRIDOR, {"max_turns": 5}, workers=workers) as pool:
            episodes, clock = rollout(language_agent(tiny), pool, group_jobs(DOORS, 4, seed=1))
        runs.append([turn.logprobs.tobytes() + turn.response_ids.tobytes() for e in episodes for turn in e.turns])
        assert clock.generation > 0 and clock.total >= clock.generation
    assert runs[0] == runs[1]


def test_the_agent_forgets_in_the_order_of_slots():
    """Environments may answer in any order within one round."""

    class Listening(RandomAgent):
        def __init__(self):
            self.forgotten = []

        def forget(self, slot):
            self.forgotten.append(slot)

    class Late(WorkerPool):
        def wait(self, timeout=None, at_least=1):
            return super().wait(timeout, len(self._episode_by_slot))[::-1]

    with Late(CORRIDOR, {"max_turns": 3}, workers=2) as pool:
        rollout(agent := Listening(), pool, group_jobs(DOORS, 3, seed=1))
    assert agent.forgotten == sorted(agent.forgotten) and len(agent.forgotten) == 9


def test_most_episodes_are_the_same_without_lockstep(tiny):
    with WorkerPool(CORRIDOR, {"max_turns": 4}, workers=2) as pool:
        strict, _ = rollout(language_agent(tiny), pool, group_jobs(DOORS, 3, seed=1))
        loose, _ = rollout(language_agent(tiny), pool, group_jobs(DOORS, 3, seed=1), deterministic=False)
    assert [e.task for e in loose] == [e.task for e in strict]
    assert np.mean([a == b for a, b in zip(transcript(loose), transcript(strict), strict=True)]) > 0.5


def test_a_response_without_action_is_an_invalid_turn(tiny):
    agent = language_agent(tiny)
    agent.context.prompt_format = find_prompt("tags")
    with WorkerPool(CORRIDOR, {"max_turns": 2}, workers=0) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["door-01"], 1, seed=0))
    assert all(turn.action == "" and not turn.valid for turn in episode.turns) and len(episode.turns) == 2


def test_a_full_context_ends_the_episode(tiny):
    agent = language_agent(tiny)
    agent.engine.max_length = 60
    with WorkerPool(CORRIDOR, {"max_turns": 50}, workers=0) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["door-01"], 1, seed=0))
    assert episode.outcome == "truncated" and 0 < len(episode.turns) < 10
    row = len(episode.turns[-1].prompt_ids) + len(episode.turns[-1].response_ids)
    assert row <= 60


class Saying:
    """Gives the same turns in every episode, and records forgotten slots."""

    def __init__(self, *words):
        self.words, self.forgotten = words, []

    def decide(self, states):
        messages = [self.words[min(len(state.episode.turns), len(self.words) - 1)] for state in states]
        return [Turn.of(word, word) for word in messages]

    def forget(self, slot):
        self.forgotten.append(slot)


def test_an_episode_restarts_when_its_environment_breaks_once(tmp_path):
    agent = Saying("walk", "raise", "end")
    with WorkerPool(FAULTY, {"marker": str(tmp_path / "once")}, workers=1) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["quiet"], 1, seed=0))
    assert episode.success and episode.restarts == 1
    assert [turn.action for turn in episode.turns] == ["walk", "raise", "end"]


def test_an_episode_fails_alone_when_its_environment_keeps_breaking():
    with WorkerPool(FAULTY, {}, workers=1, max_restarts=1) as pool:
        episodes, _ = rollout(Saying("raise"), pool, group_jobs(["quiet"], 2, seed=0))
        good, _ = rollout(Saying("end"), pool, group_jobs(["quiet"], 2, seed=0))
    assert [e.outcome for e in episodes] == ["failed"] * 2
    assert all("broken on purpose" in e.info["error"] and not e.success for e in episodes)
    assert all(e.success for e in good)


def test_an_interrupted_rollout_leaves_the_pool_usable():
    class Interrupted(Saying):
        def decide(self, states):
            raise KeyboardInterrupt

    with WorkerPool(CORRIDOR, {"expert": True}, workers=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            rollout(Interrupted("x"), pool, group_jobs(DOORS, 2, seed=0))
        episodes, _ = rollout(ExpertAgent(), pool, group_jobs(DOORS, 2, seed=0))
    assert all(episode.success for episode in episodes)


def test_an_interruption_within_the_engine_is_not_hidden(tiny, monkeypatch):
    """Cleaning up after an interruption in the growing cache must not raise another error."""
    agent, grown = language_agent(tiny), []
    empty = SlotCache._empty

    def interrupted(cache, slots, capacity):
        grown.append(slots)
        if len(grown) == 3:
            raise KeyboardInterrupt
        return empty(cache, slots, capacity)

    with WorkerPool(CORRIDOR, {"max_turns": 5}, workers=0) as pool:
        monkeypatch.setattr(SlotCache, "_empty", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rollout(agent, pool, group_jobs(DOORS, 2, seed=1))
        again, _ = rollout(agent, pool, group_jobs(DOORS, 2, seed=1))
    with WorkerPool(CORRIDOR, {"max_turns": 5}, workers=0) as pool:
        first, _ = rollout(language_agent(tiny), pool, group_jobs(DOORS, 2, seed=1))
    assert transcript(again) == transcript(first)


def test_mistakes_are_not_trainable_and_the_expert_recovers():
    with WorkerPool(CORRIDOR, {"expert": True}, workers=0) as pool:
        episodes, _ = rollout(ExpertAgent(noise=0.3), pool, group_jobs(DOORS, 10, seed=0))
    strays = [not turn.trainable for e in episodes for turn in e.turns]
    assert all(e.success for e in episodes) and 0.15 < np.mean(strays) < 0.45


def test_half_of_the_mistakes_are_mixed_actions():
    admissible = ["go to desk 1", "open drawer 3"]
    info = {"expert_action": "take mug 1 from shelf 2", "admissible_actions": admissible}
    states = [EpisodeState(slot, Episode(task="", seed=slot), info=info) for slot in range(400)]
    messages = [turn.action for turn in ExpertAgent(noise=1.0).decide(states)]
    slips = [action for action in messages if action not in admissible]
    assert 120 < len(slips) < 280 and all(action.startswith("take") for action in slips)
    assert "take to desk 1" in slips and "take mug 1" in slips


def test_agents_name_missing_information():
    with WorkerPool(CORRIDOR, {}, workers=0) as pool, rejects(ValueError, advice="expert=True"):
        rollout(ExpertAgent(), pool, group_jobs(DOORS, 1, seed=0))
    with WorkerPool(FAULTY, {}, workers=0) as pool, rejects(ValueError, "admissible_actions"):
        rollout(RandomAgent(), pool, group_jobs(["quiet"], 1, seed=0))


class Uneven:
    """Answers ``left`` after a number of calls that grows with the sample number."""

    def __init__(self):
        self.thinking, self.answered = {}, []

    def decide(self, states):
        raise AssertionError("an async agent is asked by submit")

    def submit(self, states):
        self.thinking |= {state.slot: 1 + 10 * state.episode.sample for state in states}
        return []

    def collect(self, timeout):
        time.sleep(0.01)
        self.thinking = {slot: remaining - 1 for slot, remaining in self.thinking.items()}
        done = [slot for slot, remaining in self.thinking.items() if not remaining]
        self.answered += done
        for slot in done:
            del self.thinking[slot]
        return [(slot, Turn.of("left", "left")) for slot in done]

    def forget(self, slot):
        self.thinking.pop(slot, None)


@pytest.mark.parametrize("workers", [0, 1])
def test_episodes_do_not_wait_for_the_slowest_response(workers):
    agent = Uneven()
    with WorkerPool(CORRIDOR, {"max_turns": 30}, workers=workers) as pool:
        episodes, clock = rollout(agent, pool, group_jobs(["door-05"], 3, seed=0), deterministic=False)
    assert all(episode.success for episode in episodes) and clock.generation > 0
    last = {slot: len(agent.answered) - agent.answered[::-1].index(slot) for slot in range(3)}
    assert last[0] < last[1] < last[2]
    first_of_slowest = agent.answered.index(2)
    assert agent.answered[:first_of_slowest].count(0) > 2


class OneByOne:
    """A source that offers the next job when the episode before it has ended, and the sink that sees it end."""

    def __init__(self, jobs):
        self.jobs, self.live, self.most_live, self.episodes = list(jobs), 0, 0, {}

    withholding = False

    def prepare(self, loop):
        self.most_live = max(self.most_live, len(loop.states))

    def next_job(self):
        if self.live or not self.jobs:
            return None
        self.live += 1
        return 100 + len(self.jobs), self.jobs.pop()

    def wait_limit(self):
        return 0.01

    def deliver(self, slot, episode):
        self.live -= 1
        self.episodes[slot] = episode


def test_jobs_come_from_any_source_and_episodes_go_to_any_sink():
    source = OneByOne(group_jobs(DOORS, 1, seed=4))
    with WorkerPool(CORRIDOR, {"max_turns": 30}, workers=0) as pool:
        RolloutLoop(Uneven(), pool, source, source, 8, Clock()).run(deterministic=False)
        fixed, _ = rollout(Uneven(), pool, group_jobs(DOORS, 1, seed=4), deterministic=False)
    assert source.most_live == 1 and sorted(source.episodes) == [101, 102, 103]
    assert [episode.task for episode in source.episodes.values()] == DOORS[::-1]
    assert transcript(source.episodes[slot] for slot in (101, 102, 103)) == transcript(fixed)


def test_a_source_withholds_responses_and_can_end_the_rollout():
    """As the sampling thread does while the trainer uses the engine, and when the run is being ended."""

    class Ended(Exception):
        pass

    class Closed(OneByOne):
        withholding = True
        rounds = 0

        def prepare(self, loop):
            self.rounds += 1
            if self.rounds > 3:
                loop.settle()
                assert all(state.observation for state in loop.states.values())
                raise Ended

    source, agent = Closed(group_jobs(DOORS, 1, seed=4)), Uneven()
    with WorkerPool(CORRIDOR, {"max_turns": 30}, workers=0) as pool:
        with pytest.raises(Ended):
            RolloutLoop(agent, pool, source, source, 8, Clock()).run(deterministic=False)
        assert not agent.thinking and not agent.answered and not pool.outstanding
