"""ALFWorld: household tasks in text, on generated or released games."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.engine import NOTHING_HAPPENS, GameEngine, Scene
from gagpo.envs.alfworld.expert.expert import Expert
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.folder import find_games, official_root
from gagpo.envs.alfworld.games.gamefile import GAME
from gagpo.envs.alfworld.games.generate import SPLITS, default_root, generate, list_jobs
from gagpo.envs.alfworld.games.text_style import TextStyle
from gagpo.envs.alfworld.native.engine import NativeEngine
from gagpo.envs.base import Kwargs, MarkovKey, Outcome, TextEnv
from gagpo.envs.division import hold_out
from gagpo.envs.tasks import HELD_OUT, Task, TaskSet, unknown_split

_GENERATED = frozenset({"size", "seed", "counts", "texts"})  # arguments that apply to generated games only
ENGINES = ("native", "textworld")
_ROOM = re.compile(r"-([0-9]{1,4})/trial_T")
"""The room in the id of a released game, such as ``pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_230127``."""
HELD_OUT_BY = ("task", "room")
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class ALFWorldEnv(TextEnv):
    """Six types of household tasks. The reward is 1 on success, else 0; ``info`` also holds the task text as ``goal``.

    The expert of ``expert=True`` reads only the texts that the agent sees.

    size: generated rooms: ``small`` (6-9 receptacles), ``full`` (20-48), ``varied`` (3-48; in a third of the games
        objects lie in unusual places), ``alfred`` (furniture and objects as in released games), ``alfred2`` (more
        of what is hard there: pairs, pans on burners, objects in their target that are to be treated) or ``alfred3``
        (also furniture and places that vary more widely than there, so that an agent has to read what is there).
    games: a folder with one folder of games per split, ``official`` for ``$ALFWORLD_DATA/json_2.1.1``, or None to
        generate them (once, into ``$GAGPO_DATA/alfworld``) from ``seed`` with ``counts`` games per split.
    task_types: the task types to include, all six by default.
    verb: command of generated games: ``move`` ("move O to R"), ``put`` ("put O in/on R") or ``both``, game by game.
        ``released`` is ``both``, and games with ``put`` say "You arrive at loc 12", as released ones before 0.4 do.
        The agent cannot see which one a game uses. Unless it is ``move``, the expert gets no list of admissible
        commands, discovers the verb by trying, and searches in a fixed order that can be imitated.
    texts: task texts of generated games: ``template``, ``human`` (everyday sentences) or ``both``.
    held_out: fraction of the training games that the split ``train_dev`` gets instead, at least 0 and below 1.
    held_out_by: ``task``: a hash of task and room decides, so all trials of one are on the same side, and most rooms on
        both; ``room``: no room is on both sides. Use it with released games.
    engine: ``native``, or ``textworld``: the engine that the alfworld package uses, a thousand times slower, with the
        same texts. It requires Python 3.12 or older.
    """

    immaterial: ClassVar[frozenset[str]] = TextEnv.immaterial | {"engine"}
    splits: ClassVar[tuple[str, ...]] = SPLITS
    choosing: ClassVar[frozenset[str]] = _GENERATED | {"games", "task_types", "verb", "held_out", "held_out_by"}
    has_imperfect: ClassVar[bool] = True
    markov_key: ClassVar[MarkovKey] = "state"
    clusters: ClassVar[str] = "rooms"
    instructions: ClassVar[str] = (
        "You are an expert agent in a household. You act by one command at a time: go to RECEPTACLE, open RECEPTACLE, "
        "close RECEPTACLE, take OBJECT from RECEPTACLE, move OBJECT to RECEPTACLE, examine THING, use OBJECT, "
        "heat OBJECT with RECEPTACLE, clean OBJECT with RECEPTACLE, cool OBJECT with RECEPTACLE, slice OBJECT with "
        "OBJECT, look, inventory. Objects and receptacles are called by name and number, as in mug 1."
    )

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 50,
        expert: bool | str = False,
        render_mode: str | None = None,
        size: str = "small",
        games: str | Path | None = None,
        seed: int = 0,
        counts: Mapping[str, int] | None = None,
        task_types: Collection[str] | None = None,
        verb: str = "move",
        texts: str = "template",
        engine: str = "native",
        held_out: float = 0.0,
        held_out_by: str = "task",
    ):
        if held_out_by not in HELD_OUT_BY:
            raise InvalidArgument(
                f"held_out_by must be one of {', '.join(HELD_OUT_BY)} (got {held_out_by!r:.80})", key="held_out_by"
            )
        self.held_out_by = held_out_by
        if not isinstance(held_out, int | float) or not 0 <= held_out < 1:
            raise InvalidArgument(f"held_out must be at least 0 and less than 1 (got {held_out!r:.80})", key="held_out")
        self.held_out = float(held_out)
        if held_out:
            train, *validation = SPLITS
            self.splits = (train, HELD_OUT, *validation)  # type: ignore[misc]
        super().__init__(split, max_turns, expert, render_mode)
        self.size = size
        self.seed = seed
        self.counts = dict(counts or {})
        self.task_types = tuple(TASK_TYPES if task_types is None else task_types)
        self.text_style = TextStyle(verb, texts)  # type: ignore[arg-type]  # checked there
        if verb != "move":
            put_command = "put OBJECT in/on RECEPTACLE"
            if verb == "put":
                command = put_command
            else:
                command = f"move OBJECT to RECEPTACLE (or {put_command})"
            self.instructions = self.instructions.replace("move OBJECT to RECEPTACLE", command)  # type: ignore[misc]
        self.games: Path | None = None
        if games == "official":
            self.games = official_root()
        elif games is not None:
            self.games = Path(games)
        list_jobs(size, self.counts, self.task_types)  # checks the arguments
        self._engine = _engine(engine)
        self._task_sets: dict[str, TaskSet] = {}
        self._expert: Expert | None = None
        self._goal = ""
        self.tasks(split)

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        return bool(kwargs.get("engine", "native") == "native")

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        return frozenset() if kwargs.get("games") is None else _GENERATED

    @classmethod
    def cluster(cls, task: str, kwargs: Kwargs) -> str | None:
        """The room of a released game: 134 of them are in four rooms. A generated game has a room of its own."""
        room = _ROOM.search(task)
        return room[1] if room else None

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise unknown_split("ALFWorld", split, self.splits)
        if split not in self._task_sets:
            if self.held_out and split in (SPLITS[0], HELD_OUT):
                self._divide_training_games()
            else:
                self._task_sets[split] = self._games_of(split)
        return self._task_sets[split]

    def _divide_training_games(self) -> None:
        """Divide by room, or by task and room, the first part of an id: the trials below it differ in where things lie.

        Rooms say more about new rooms, tasks leave more kinds of problems on both sides.
        """
        games = self._games_of(SPLITS[0])

        def key(task: Task) -> str:
            room = _ROOM.search(task.id) if self.held_out_by == "room" else None
            return room[1] if room else task.id.split("/")[0]

        train, dev = hold_out(games, self.held_out, HELD_OUT, key)
        self._task_sets |= {train.split: train, dev.split: dev}

    def _games_of(self, split: str) -> TaskSet:
        if self.games is None:
            return self._generated(split)
        return find_games(self.games, split, self.task_types).tasks

    def _generated(self, split: str) -> TaskSet:
        root = default_root(self.size, self.seed, self.text_style)
        games = generate(self.size, self.seed, self.counts, self.task_types, root, (split,), text_style=self.text_style)
        tasks = [
            Task(game.id, split, game.task_type, game.digest, f"{root}/{split}/{game.id}/{GAME}")
            for game in games[split]
        ]
        return TaskSet(split, tasks, advice=f"Ask for more than {self.counts.get(split, 0)} games in `counts`.")

    def begin(self, task: Task) -> Outcome:
        scene = self._engine.reset(Path(task.source))
        if self.with_expert:
            orderly = self.text_style.verb != "move"
            self._expert = Expert(scene.observation, self._expert_commands(scene), self.imperfect, orderly)
            self._expert.objects_in_target = self.games is not None or self.size not in ("small", "full")
        self._goal = scene.observation.rpartition("Your task is to: ")[2].strip()
        return self._outcome(scene, scene.observation.removeprefix(BANNER))

    def act(self, action: str) -> Outcome:
        scene = self._engine.step(action)
        if self._expert is not None:
            self._expert.observe(action, scene.observation, self._expert_commands(scene))
        return self._outcome(scene, scene.observation)

    def _expert_commands(self, scene: Scene) -> Sequence[str] | None:
        """The admissible commands that the expert sees: None where it has to discover the verb."""
        if self.text_style.verb == "move":
            return scene.admissible_commands
        return None

    def expert_action(self) -> str | None:
        if self._expert is None or not self._expert.has_goal:
            return None
        return self._expert.next_action()

    def close(self) -> None:
        self._engine.close()

    def _outcome(self, scene: Scene, text: str) -> Outcome:
        return Outcome(
            text,
            reward=float(scene.won),
            terminated=scene.done,
            success=scene.won,
            valid=scene.observation != NOTHING_HAPPENS,
            state=scene.state,
            admissible_actions=scene.admissible_commands,
            extras={"goal": self._goal},
        )


def _engine(name: str) -> GameEngine:
    if name not in ENGINES:
        raise InvalidArgument(f"unknown engine {name!r}", advice=f"choose {' or '.join(ENGINES)}")
    if name == "native":
        return NativeEngine()
    from gagpo.envs.alfworld.reference.engine import TextWorldEngine  # imports textworld, which takes a second

    return TextWorldEngine()
