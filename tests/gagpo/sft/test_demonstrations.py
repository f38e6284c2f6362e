"""Demonstrations: their players, what is imitated, and how responses are written."""

import json
import sys

import gymnasium
import pytest

from gagpo.agents.agent import EpisodeState
from gagpo.agents.prompts import find_prompt
from gagpo.agents.setup import make_env
from gagpo.agents.toolbox import ActionFormat
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, Turn
from gagpo.settings import load
from gagpo.sft import demonstrations as module
from gagpo.sft.demonstrations import (
    NoisyExpert,
    demonstrations,
    has_expert,
    noisy_expert,
    rephrase,
    run_episodes,
    success_of,
)
from gagpo.sft.run import sft
from tests.rejections import rejects

LEVER = """
import gymnasium
from gagpo.envs import Outcome, Task, TaskSet, TextEnv

class LeverEnv(TextEnv):
    '''Pull the lever of the colour that is named. Nobody shows how.'''
    pays = 1.0
    def tasks(self, split):
        colours = ["red", "blue"] if split == "train" else ["red"]
        return TaskSet(split, [Task(f"{split}-{c}", split, digest=f"{split} {c}") for c in colours])
    def begin(self, task):
        self.colour = task.digest.split()[1]
        return Outcome(f"The {self.colour} lever is the one.", state=self.colour)
    def act(self, action):
        right = action == self.colour
        return Outcome("Done.", reward=self.pays * right, terminated=True, success=right, valid=action != "green")
    def sample_action(self, rng):
        return ["red", "blue", "green"][int(rng.integers(3))]

class BarrenEnv(LeverEnv):
    pays = 0.0
    def act(self, action):
        return Outcome("Done.", terminated=True)

gymnasium.register("Lever-v0", "lever:LeverEnv", disable_env_checker=True, order_enforce=False)
gymnasium.register("Barren-v0", "lever:BarrenEnv", disable_env_checker=True, order_enforce=False)
"""


@pytest.fixture
def lever(tmp_path, monkeypatch):
    (tmp_path / "lever.py").write_text(LEVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("lever", None)
    for name in ("Lever-v0", "Barren-v0"):
        gymnasium.registry.pop(name, None)


def state(seed, admissible):
    episode = Episode("t", seed=seed)
    return EpisodeState(0, episode, "", {"expert_action": "on", "admissible_actions": admissible})


def test_a_careless_expert_makes_as_many_random_moves_as_asked_and_all_are_imitated():
    careless = NoisyExpert(0.4)
    turns = [careless.decide([state(seed, ["a", "b"])])[0] for seed in range(2000)]
    share = sum(turn.action != "on" for turn in turns) / len(turns)
    assert 0.36 < share < 0.44 and all(turn.trainable and turn.response == turn.action for turn in turns)
    messages = NoisyExpert(1.0, ["known"]).decide([state(1, None)])[0]
    assert messages.action == "known", "an environment that lists no actions offers those its expert has said"
    assert NoisyExpert(1.0).decide([state(1, None)])[0].action == "on"


def test_the_derived_share_of_random_moves_wins_nearest_to_two_in_five(corridor):
    settings = load(corridor(), ["sft.mistake_rate=null"])
    tasks = make_env(settings.environment.id, settings.environment.kwargs).tasks("train").ids
    chosen = noisy_expert(settings, tasks)

    def wins(share):
        names = [tasks[i % len(tasks)] for i in range(64)]
        expert = {**settings.environment.kwargs, "expert": True}
        return success_of(
            run_episodes(settings, expert, NoisyExpert(share, chosen.actions), names, "warm start wander")
        )

    distances = {share: abs(wins(share) - 0.4) for share in (0.1, 0.2, 0.3, 0.4, 0.5)}
    assert distances[chosen.mistake_rate] == min(distances.values())


def test_mistakes_are_imitated_whether_the_episode_succeeds_or_not(corridor):
    settings = load(corridor(environment={"kwargs": {"max_turns": 10}}), ["sft.mistake_rate=0.5"])
    output = demonstrations(settings, quiet=True)
    assert len(output.episodes) == settings.sft.episodes and 0 < success_of(output.episodes) < 1
    assert output.mistakes == 0.5


def test_an_imperfect_player_makes_half_of_the_episodes_unless_it_is_set(corridor, monkeypatch):
    players = []
    monkeypatch.setattr(
        module, "run_episodes", lambda settings, kwargs, agent, tasks, *_: players.append((kwargs, tasks)) or []
    )
    monkeypatch.setattr(module, "require_solved", lambda *_: None)
    environment = {"id": "gagpo/SQL-v0", "kwargs": {}}
    for mistakes, imperfect in (("null", 20), ("0.25", 10), ("0", 0)):
        players.clear()
        assert demonstrations(load(corridor(environment=environment), [f"sft.mistake_rate={mistakes}"]), quiet=True)
        counts = {kwargs["expert"]: len(tasks) for kwargs, tasks in players}
        assert counts.get("imperfect", 0) == imperfect and counts[True] == 40 - imperfect


def test_without_an_expert_the_best_random_episodes_are_imitated(corridor, lever, tmp_path):
    assert not has_expert(make_env("lever:Lever-v0"))
    settings = load(
        corridor(environment={"id": "lever:Lever-v0", "kwargs": {}}),
        [f"model={tmp_path / 'm'}", "sft.episodes=60", "sft.steps=4"],
    )
    output = demonstrations(settings, quiet=True)
    assert len(output.episodes) == 15 and success_of(output.episodes) == 1.0 and not output.imitable
    assert (sft(settings, quiet=True) / "config.json").is_file()


def test_random_play_that_earns_nothing_says_what_the_environment_needs(corridor, lever):
    settings = load(corridor(environment={"id": "lever:Barren-v0", "kwargs": {}}))
    with rejects(InvalidArgument, "same reward", advice="expert_action"):
        demonstrations(settings, quiet=True)


@pytest.mark.parametrize(
    ("prompt", "said", "learned"),
    [
        ("plain", "<think>which way?</think><action>left</action>", "left"),
        ("tags", "<think>which way?</think><action>left</action>", "<think>which way?</think><action>left</action>"),
        ("tags", "left", "<action>left</action>"),
        ("whole", "<action>left</action>", "left"),
    ],
)
def test_responses_are_rewritten_for_the_learners_parser(prompt, said, learned, monkeypatch):
    monkeypatch.setattr(module, "action_format_of", lambda settings: ActionFormat(find_prompt(prompt)))
    episode = Episode("t", turns=[Turn("You stand at 1.", said, "left")])
    rephrase([episode], None)
    assert episode.turns[0].response == learned


def test_solutions_of_training_problems_are_imitated_and_no_others(tmp_path, capfd):
    def row(n):
        calculation = f"<<{n}+{n % 7}={n + n % 7}>>" if n % 5 else ""
        return {"question": f"Mia has {n} cups and {n % 7} more.", "answer": f"{calculation}All.\n#### {n + n % 7}"}

    for split, numbers in (("train", range(10, 70)), ("test", range(5))):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in numbers))
    data = f"environment.kwargs.data=gsm8k:{tmp_path}"
    settings = load("gsm8k-smollm2", [data, "sft.episodes=60", "rollout.workers=1"])
    tasks = make_env("gagpo/Math-v0", settings.environment.kwargs).tasks
    assert len(tasks("validation")) > 2
    imitated = demonstrations(settings, quiet=True)
    training = {task for task in tasks("train").ids if int(task[-6:]) % 5 != 1}  # row 1 is number 10
    assert {episode.task for episode in imitated.episodes} == training and imitated.mistakes == 0.0
    for episode in imitated.episodes:
        call, answer = episode.turns
        assert episode.success and call.response == call.action and call.response.endswith("</calc>")
        assert answer.response.startswith(r"All. \boxed{")
    assert f"{len(training)} of {len(tasks('train'))} solutions of the split train" in capfd.readouterr().err
