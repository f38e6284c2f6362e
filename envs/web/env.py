"""``gagpo/Web-v0``: tasks on web pages in a real browser."""

from __future__ import annotations

import hashlib
import re
from typing import Any, ClassVar, Literal

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info, MarkovKey, Outcome, TextEnv
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import CallError, ToolCall
from gagpo.envs.web import driver as drivers
from gagpo.envs.web import naming
from gagpo.envs.web.actions import INSTRUCTIONS, TOOLS, Command, parse, parse_call
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.errors import PageBroken, PageHung
from gagpo.envs.web.naming import parse_named, write_named
from gagpo.envs.web.page import OBSERVATIONS, Line, Observation
from gagpo.envs.web.source import Standing, make_source

FORMS = ("text", "names", "tools")
STATES = ("page", "history")
LEAST_LIMIT = 200
_QUOTED = re.compile(r'"([^"]{1,100})"')
_WORD = re.compile(r"[\w@.,'-]+")
_TYPED_WORDS = 8  # offered for each field to a random policy


class WebEnv(TextEnv):
    """Do a task on web pages in headless Chromium, by Selenium.

    The observation is the instruction and the page as an indented list. Actions are ``click[3]``, ``type[4] words``,
    ``select[7]``, ``press[Enter]``, ``scroll[down]``, ``scroll[up]`` and ``back``. One that cannot be carried out is
    invalid, and the observation says why.

    source: ``miniwob``, ``folder``, ``webshop`` or ``module:Name`` (:class:`gagpo.envs.web.source.WebSource`).
    observation: ``full``, or ``interactive`` for only what can be used.
    limit: characters of the page that are shown.
    form: ``text``; ``names`` for actions that name things, such as ``click[Buy Now]`` (:mod:`gagpo.envs.web.naming`);
        or ``tools`` to declare the actions as tools.
    screenshots: put a PNG of the page into ``info["screenshot"]`` (base64).
    state: what the state key identifies: ``page`` for what can be seen, ``history`` for the task and all actions.
    timeout: seconds that a page may take to answer. One that does not ends the episode.
    grid: address of a Selenium Grid, such as ``http://HOST:4444``; None for a browser of this machine.
    host: address at which the pages are served; the browsers of a grid must be able to reach it.
    options: the source's own.

    The state key ``page`` is a hash of the visible page, the values of its fields and its timers: turns of different
    paths share it, but what a page hides in its variables is not part of it. With ``history`` equal keys always mean
    equal futures, because the same actions lead to the same page; only equal paths share it.

    ``admissible_actions`` lists what can be clicked and chosen, and words of the instruction for every field; other
    words are valid, too.

    Raises:
        BrowserMissing: Selenium, Chromium or chromedriver is not installed.
    """

    # ``state`` is the key of credits; a page that is late ends its episode, so ``timeout`` is a condition.
    immaterial: ClassVar[frozenset[str]] = TextEnv.immaterial | {"screenshots", "grid", "host", "state"}
    code_names: ClassVar[frozenset[str]] = frozenset({"source"})
    interface: ClassVar[frozenset[str]] = frozenset({"form", "observation"})
    choosing: ClassVar[frozenset[str]] = frozenset({"tasks", "level", "seeds"})
    markov_key: ClassVar[MarkovKey] = "state"
    checks_arguments: ClassVar[bool] = True  # those of its source
    instructions: ClassVar[str] = INSTRUCTIONS

    def __init__(
        self,
        split: str | None = None,
        max_turns: int = 15,
        expert: bool | str = False,
        render_mode: str | None = None,
        *,
        source: str = "miniwob",
        observation: Observation = "full",
        limit: int = 4_000,
        form: Literal["text", "names", "tools"] = "text",
        screenshots: bool = False,
        state: Literal["page", "history"] = "page",
        timeout: float = 20.0,
        grid: str | None = None,
        host: str = "127.0.0.1",
        **options: Any,
    ):
        if observation not in OBSERVATIONS:
            raise InvalidArgument(
                f"unknown observation {observation!r:.80}", advice=f"choose {' or '.join(OBSERVATIONS)}"
            )
        if form not in FORMS:
            raise InvalidArgument(f"unknown form {form!r:.80}", advice=f"choose one of {', '.join(FORMS)}")
        if state not in STATES:
            raise InvalidArgument(f"unknown state {state!r:.80}", advice=f"choose {' or '.join(STATES)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < LEAST_LIMIT:
            raise InvalidArgument(f"limit must be at least {LEAST_LIMIT} characters (got {limit!r:.80})", key="limit")
        drivers.require_selenium()
        if grid is None:
            drivers.find_programs()
        else:
            drivers.check_grid(grid)
        self.source = make_source(source, options)
        self.splits = tuple(self.source.splits)  # type: ignore[misc]
        super().__init__(split or self.splits[0], max_turns, expert, render_mode)
        self.observation = observation
        self.limit = limit
        self.form = form
        self.screenshots = screenshots
        self.state = state
        if form == "tools":
            self.tools = TOOLS
            self.instructions = "You use a web page. It is shown as a list; what can be used has a number."  # type: ignore[misc]
        elif form == "names":
            self.instructions = naming.INSTRUCTIONS  # type: ignore[misc]
        self.browser = Browser(timeout, grid, host)
        self.instruction = ""
        self._tasks: dict[str, TaskSet] = {}
        self._commands: list[Command | None] = []  # of this episode

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise InvalidArgument(f"WebEnv has no split {split!r}", advice=f"choose one of {', '.join(self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = TaskSet(split, self.source.tasks(split))
        return self._tasks[split]

    def begin(self, task: Task) -> Outcome:
        self._commands = []
        self.instruction = self.source.open(self.browser, task)
        return self._outcome(self.source.outcome(self.browser))

    def act(self, action: str) -> Outcome:
        command = None
        note = ""
        try:
            command = self._read(action)
        except CallError as reason:
            note = str(reason)
        try:
            if self.browser.parked:
                self._repeat()
            note = self._carry_out(command) or note
        except (PageHung, PageBroken) as error:
            text = f"{self.instruction}\n\nThe episode ends: {error}."
            how = "hung" if isinstance(error, PageHung) else "broken"
            return Outcome(text, truncated=True, valid=False, state=self._key(how), extras={how: True})
        return self._outcome(self.source.outcome(self.browser), note and f"Invalid action: {note}.")

    def _carry_out(self, command: Command | None) -> str:
        """Carry out a command, None for an action that is none; returns why it cannot be."""
        self._commands.append(command)
        reason = ""
        if command is not None:
            try:
                self.browser.do(command)
                return ""
            except CallError as error:
                reason = str(error)
        self.browser.read()  # time passes on the page, and what was begun may have changed it
        return reason

    def _repeat(self) -> None:
        """Bring a new browser to where this episode stands."""
        assert self.task is not None
        commands = self._commands
        self._commands = []
        self.source.open(self.browser, self.task)
        for command in commands:
            self.source.outcome(self.browser)
            self._carry_out(command)

    def expert_action(self) -> str | None:
        command = self.source.expert(self.browser)
        return None if command is None else self._written(command)

    def sample_action(self, rng: np.random.Generator) -> str:
        """One of the admissible actions; the turn limit ends an episode that offers none."""
        commands = self._offered()
        return self._written(commands[int(rng.integers(len(commands)))])

    def close(self) -> None:
        self.browser.close()
        super().close()

    def _written(self, command: Command) -> str:
        if self.form == "tools":
            return ToolCall(command.name, command.call).text
        return write_named(command, self.browser.page) if self.form == "names" else str(command)

    def _read(self, action: str) -> Command:
        if self.form == "tools":
            return parse_call(action)
        return parse_named(action, self.browser.page) if self.form == "names" else parse(action)

    def _outcome(self, verdict: Standing, note: str = "") -> Outcome:
        page = self.browser.page
        notes = [note] if note else []
        content = "The episode is over." if verdict.over else page.text(self.observation, self.limit)
        text = "\n".join([self.instruction, *notes, *page.notes, "", content or "(The page is empty.)"])
        reward = 0.0
        if verdict.over:
            reward = verdict.reward
        elif self.turn >= self.max_turns:
            reward = verdict.truncated_reward
        extras: Info = {"screenshot": self.browser.screenshot()} if self.screenshots else {}
        return Outcome(
            text,
            reward=reward,
            terminated=verdict.over,
            success=verdict.over and verdict.success,
            valid=not note,
            state=self._key(verdict.state),
            admissible_actions=[self._written(command) for command in self._offered()],
            extras=extras,
        )

    def _key(self, hidden: str) -> str:
        task = self.task.id if self.task is not None else ""
        values = [task, self.browser.page.key, hidden]
        if self.state == "history":
            # An action that is invalid counts, too: it moves the page's clock on.
            values = [task, *("-" if command is None else str(command) for command in self._commands)]
        content = "\0".join(values)
        return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:32]

    def _offered(self) -> list[Command]:
        """What can be done with the page: clicks, choices, typing words of the instruction, scrolling."""
        page = self.browser.page
        texts = list(dict.fromkeys([*_QUOTED.findall(self.instruction), *_WORD.findall(self.instruction)]))
        commands: list[Command] = []
        for line in page.lines:
            if line.usable:
                commands += _uses(line, texts[:_TYPED_WORDS])
        up, down = page.can_scroll
        commands += [Command("scroll", text="up")] * up + [Command("scroll", text="down")] * down
        return commands or [Command("press", text="Tab")]


def _uses(line: Line, words: list[str]) -> list[Command]:
    if line.role == "option" and line.depth:
        return [Command("select", line.number)]
    click = Command("click", line.number)
    typed = line.role in ("input", "textarea") and "read-only" not in line.states
    return [click, *(Command("type", line.number, word) for word in words)] if typed else [click]
