"""``gagpo/ScienceWorld-v0``: science experiments in a simulated house (Wang et al., 2022)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gagpo.envs.base import MarkovKey, Outcome, TextEnv
from gagpo.envs.scienceworld.experiment import Experiment, SimulatorReply, Variation
from gagpo.envs.scienceworld.simulator import SIMULATOR, simulator_command
from gagpo.envs.scienceworld.variations import SPLITS, checked_simplifications, checked_tasks, task_set
from gagpo.envs.tasks import Task, TaskSet

LONGEST_ACTION = 500  # characters; the longest valid actions have about 100


class ScienceWorldEnv(TextEnv):
    """Carry out an experiment by text commands, in ScienceWorld's own simulator.

    A task is a variation of one of 30 tasks, in the official splits ``train``, ``dev`` and ``test``. The reward is the
    change of the official score divided by 100, so an episode's rewards add up to its final score: 1 for a solved task,
    -1 after a mistake that ends it, such as focusing on the wrong object. An action that the simulator does not
    understand is invalid and takes no time in the simulator.

    All environments of a process share one Java process. An episode whose Java process is lost is replayed.

    task_types: names of tasks, or ``all``.
    simplifications: of ``easy``, ``noElectricalAction``, ``openContainers``, ``openDoors``, ``selfWateringFlowerPots``
        and ``teleportAction``; a list, or a text with commas.
    admissible: list the valid actions in every turn, which is about ten times slower.
    max_turns: the original stops after 100 moves of the simulator; gold paths have up to 180 actions.

    The expert follows the gold path, and has no action once the agent has left it. ``info["state"]`` is a key of the
    actions so far without those that were not understood: the simulator has no shorter description of its state.
    ``info`` also holds ``score``, from -100 to 100.

    Source: Wang et al., "ScienceWorld: Is your Agent Smarter than a 5th Grader?", EMNLP 2022.
    """

    splits = SPLITS
    choosing: ClassVar[frozenset[str]] = frozenset({"task_types"})
    markov_key: ClassVar[MarkovKey] = "state"
    instructions: ClassVar[str] = (
        "You carry out a science task in a simulated house. Each turn, write one command. The commands are: "
        "look around, inventory, task, look at OBJ, look in OBJ, read OBJ, open OBJ, close OBJ, go to LOC, "
        "pick up OBJ, put down OBJ, move OBJ to OBJ, pour OBJ in OBJ, dunk OBJ in OBJ, mix OBJ, eat OBJ, flush OBJ, "
        "activate OBJ, deactivate OBJ, use OBJ on OBJ, connect OBJ to OBJ, disconnect OBJ, focus on OBJ, "
        "wait (10 steps), wait1. "
        "OBJ is an object that you can see, LOC a room with an open door. Focus only on what the task asks for: the "
        "wrong object ends it. If a command is ambiguous, answer with the number of the one you mean."
    )

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 200,
        expert: bool | str = False,
        render_mode: str | None = None,
        task_types: Sequence[str] | str = "all",
        simplifications: Sequence[str] | str = "",
        admissible: bool = False,
    ):
        super().__init__(split, max_turns, expert, render_mode)
        self.task_types = checked_tasks(task_types)
        self.simplifications = checked_simplifications(simplifications)
        self.admissible = admissible
        simulator_command()  # raises an error if Java or the package is missing; Java starts with the first episode
        self._experiment = Experiment(SIMULATOR.take(self))
        self._gold: list[str] = []
        self._score = 0
        self._valid_actions: list[str] = []

    @property
    def process(self) -> int | None:
        """The id of the Java process."""
        return SIMULATOR.thing.process

    def tasks(self, split: str) -> TaskSet:
        return task_set(split, self.task_types, self.simplifications)

    def begin(self, task: Task) -> Outcome:
        SIMULATOR.take(self)  # again after close()
        start = Variation(task.type, int(task.source), self.simplifications)
        self._gold = self._experiment.load(start, with_gold=self.with_expert)
        self._score = 0
        description, view = self._experiment.look()
        return self._outcome(SimulatorReply(f"{description}\n\n{view}", 0, False, True))

    def act(self, action: str) -> Outcome:
        text = " ".join(action[:LONGEST_ACTION].split()).encode("utf-8", "replace").decode()
        reply = self._experiment.step(text)
        # The simulator lists a few actions, such as those with one of several bees, that it does not understand when
        # they are carried out. The agent could not know, so they count as valid.
        return self._outcome(reply._replace(valid=reply.valid or text in self._valid_actions))

    def expert_action(self) -> str | None:
        """The next action of the gold path, or None if the agent has left it."""
        num_actions = len(self._experiment.history)
        on_path = self._experiment.history == self._gold[:num_actions]
        return self._gold[num_actions] if on_path and num_actions < len(self._gold) else None

    def sample_action(self, rng: np.random.Generator) -> str:
        """An action of a random form about random objects that the agent sees."""
        templates, objects = self._experiment.vocabulary()
        tokens = str(rng.choice(templates)).split(" ")
        return " ".join(str(rng.choice(objects)) if word == "OBJ" else word for word in tokens)

    def close(self) -> None:
        SIMULATOR.release(self)

    def _outcome(self, reply: SimulatorReply) -> Outcome:
        reward = (reply.score - self._score) / 100
        self._score = reply.score
        lists_actions = self.admissible and not reply.completed
        self._valid_actions = self._experiment.valid_actions() if lists_actions else []
        return Outcome(
            reply.text.strip(),
            reward,
            terminated=reply.completed,
            success=reply.completed and reply.score >= 100,
            valid=reply.valid,
            state=self._state(),
            admissible_actions=self._valid_actions if lists_actions else None,
            extras={"score": reply.score},
        )

    def _state(self) -> str:
        assert self.task is not None
        content = json.dumps([self.task.digest, self._experiment.history])
        return hashlib.sha256(content.encode()).hexdigest()[:16]
