"""Worlds without a hasty player, and worlds without an expert, have somebody to learn from as well."""

import sys

import gymnasium
import pytest

from gagpo.agents.agent import EpisodeState
from gagpo.agents.episodes import Episode
from gagpo.agents.setup import make_world
from gagpo.base.errors import InvalidArgument
from gagpo.settings import SettingsError, load
from gagpo.warm_start.demonstrations import demonstrations
from gagpo.warm_start.derived import players_of
from gagpo.warm_start.players import WanderingExpert, has_expert, play, success_of, wandering
from gagpo.warm_start.run import warm_start

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
MEASURED = ["warm_start.steps=null", "warm_start.most_steps=4"]


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


def test_a_wandering_expert_moves_at_will_as_often_as_asked_and_is_imitated():
    wanderer = WanderingExpert(0.4)
    turns = [wanderer.decide([state(seed, ["a", "b"])])[0] for seed in range(2000)]
    share = sum(turn.action != "on" for turn in turns) / len(turns)
    assert 0.36 < share < 0.44 and all(turn.trainable and turn.response == turn.action for turn in turns)
    said = WanderingExpert(1.0, ["known"]).decide([state(1, None)])[0]
    assert said.action == "known", "a world that lists no actions offers those its expert has said"
    assert WanderingExpert(1.0).decide([state(1, None)])[0].action == "on"


def test_the_share_is_the_one_that_wins_nearest_to_two_in_five(corridor):
    settings = load(corridor(), MEASURED)
    tasks = make_world(settings.environment.id, settings.environment.kwargs).tasks("train").ids
    kwargs = settings.environment.kwargs
    chosen = wandering(settings, kwargs, tasks, None)

    def wins(share):
        names = [tasks[i % len(tasks)] for i in range(64)]
        expert = {**kwargs, "expert": True}
        return success_of(play(settings, expert, WanderingExpert(share, chosen.said), names, "warm start wander"))

    distances = {share: abs(wins(share) - 0.4) for share in (0.1, 0.2, 0.3, 0.4, 0.5)}
    assert distances[chosen.wander] == min(distances.values())


def test_what_a_wandering_expert_does_is_learned_whether_it_wins_or_not(corridor):
    settings = load(corridor(environment={"kwargs": {"max_turns": 10}}), [*MEASURED, "warm_start.wander=0.5"])
    episodes = demonstrations(settings, quiet=True)
    assert len(episodes) == settings.warm_start.episodes and 0 < success_of(episodes) < 1


def test_contrast_comes_by_itself_unless_it_is_set(corridor):
    world = make_world("gagpo.envs.testing:gagpo-test/Corridor-v0", {"max_turns": 16})
    assert players_of(load(corridor(), MEASURED), world)["warm_start.wander"] > 0
    assert "warm_start.wander" not in players_of(load(corridor(), [*MEASURED, "warm_start.wander=0"]), world)
    assert players_of(load(corridor()), world) == {}, "with fixed steps nothing is derived"
    sql = make_world("gagpo/SQL-v0", {})
    assert players_of(load(corridor(), MEASURED), sql)["warm_start.hasty"] == 0.5
    with pytest.raises(SettingsError, match="set one of them"):
        load(corridor(), ["warm_start.hasty=0.5", "warm_start.wander=0.2"])


def test_without_an_expert_the_best_of_chance_are_learned_from(corridor, lever, tmp_path):
    assert not has_expert(make_world("lever:Lever-v0"))
    environment = {"id": "lever:Lever-v0", "kwargs": {}}
    changes = [f"model={tmp_path / 'm'}", *MEASURED, "warm_start.episodes=60"]
    settings = load(corridor(environment=environment), changes)
    assert players_of(settings, make_world("lever:Lever-v0"))["warm_start.player"] == "random"
    kept = demonstrations(load(corridor(environment=environment), [*changes, "warm_start.player=random"]), quiet=True)
    assert len(kept) == 15 and success_of(kept) == 1.0
    heard = []
    assert (warm_start(settings, quiet=True, say=heard.append) / "config.json").is_file()
    assert "warm_start.player=random" in heard[0]


def test_random_play_that_earns_nothing_says_what_to_give_the_world(corridor, lever):
    settings = load(
        corridor(environment={"id": "lever:Barren-v0", "kwargs": {}}), [*MEASURED, "warm_start.player=random"]
    )
    with pytest.raises(InvalidArgument, match=r"all earned the same.*expert_action or a reward on the way"):
        demonstrations(settings, quiet=True)
