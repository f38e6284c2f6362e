"""Tasks on the pages of a folder: HTML files and one YAML file."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from gagpo.base.core_schema import read_mapping
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, explain
from gagpo.envs.tasks import Task
from gagpo.envs.tools import CallError
from gagpo.envs.web.actions import Command, parse
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.server import Files, PageRequest
from gagpo.envs.web.source import Standing

TASKS_FILE = "tasks.yaml"
MOST_FILES = 10_000


class PageCondition(Options):
    """What the browser shows; all that is given must hold. What the agent has typed does not count.

    selector: a CSS selector of something visible, outside of what can be edited.
    text: a text that can be seen on the page, outside of what can be edited, and that was not typed in this episode.
        Together with a selector, any text in the selected element counts as well.
    url: the address after the host, with the query. The part after ``#`` counts only if it is given.
    """

    selector: str | None = Field(None, min_length=1, max_length=1000)
    text: str | None = Field(None, min_length=1, max_length=1000)
    url: str | None = Field(None, min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _not_empty(self) -> PageCondition:
        if self.selector is None and self.text is None and self.url is None:
            raise ValueError("must have a selector, a text or a url")
        return self

    def holds(self, browser: Browser) -> bool:
        """Whether the page of ``browser`` is so; a selector that is none raises InvalidArgument."""
        return self._has_address(browser.page.path) and self._has_text(browser) and self._has_element(browser)

    def _has_address(self, path: str) -> bool:
        if self.url is None:
            return True
        if "#" not in self.url:
            path = path.partition("#")[0]
        return path.lstrip("/") == self.url.lstrip("/")

    def _has_text(self, browser: Browser) -> bool:
        if self.text is None or self._has_text_in_element(browser):
            return True
        return not was_typed(self.text, browser.typed) and self._asks(browser, "says", self.text, None)

    def _has_element(self, browser: Browser) -> bool:
        if self.selector is None or self._has_text_in_element(browser):
            return True
        return self._asks(browser, "shows", self.selector)

    def _has_text_in_element(self, browser: Browser) -> bool:
        """Whether the text stands where the selector says, which may be where the agent types it."""
        if self.text is None or self.selector is None:
            return False
        return self._asks(browser, "says", self.text, self.selector)

    def _asks(self, browser: Browser, function: str, *values: str | None) -> bool:
        """The answer of a function of reader.js; its last argument is what was typed."""
        typed = "\n".join(["".join(browser.typed), *browser.typed]).lower()
        arguments = json.dumps([*values, typed])
        answer = browser.evaluate(_ASKS.format(function, arguments))
        if isinstance(answer, str):
            raise InvalidArgument(
                f"success or failure has a wrong selector {self.selector!r:.80}: {answer:.200}", key="selector"
            )
        return bool(answer)


_ASKS = """
(() => {{
  try {{
    return __gagpo.{}(...{});
  }} catch (error) {{
    return String(error.message);
  }}
}})()
"""
_MARKUP = re.compile(r"<[a-z/!?]|&[#\w]", re.IGNORECASE)


def was_typed(text: str, typed: Sequence[str]) -> bool:
    """Whether a text can come from what the agent has typed: from one text, from several, or letter by letter.

    Pages show a text in other cases and spaces, and next to others, so each word must stand somewhere in what was
    typed. Markup can hide between the letters of a text, which then have to occur in order.

    >>> was_typed("Order placed!", ["my order", "placed"]), was_typed("Order placed!", ["an order"])
    (True, False)
    >>> was_typed("Done", ["D", "o", "n", "e"]), was_typed("Done", ["Do<b>n</b>e"])
    (True, True)
    """
    typed_texts = ["".join(typed).casefold(), " ".join(typed).casefold()]
    tokens = re.findall(r"\w+", text.casefold()) or [text.casefold().strip()]
    if all(any(word in typed_text for typed_text in typed_texts) for word in tokens):
        return True
    if not any(_MARKUP.search(typed_text) for typed_text in typed):
        return False
    letters = iter(html.unescape(typed_texts[0]))
    return all(letter in letters for letter in "".join(tokens))


class WebTask(Options):
    """A task of the file.

    start: path of its first page, in the folder; may have a query.
    success: ends the episode with reward 1.
    failure: ends the episode with reward 0.
    expert: actions that solve it, such as ``click[3]``.
    """

    id: str = Field(min_length=1, max_length=200)
    split: Literal["train", "test"] = "train"
    type: str = Field("page", max_length=200)
    start: str = Field("index.html", max_length=1000)
    instruction: str = Field(min_length=1, max_length=10_000)
    success: PageCondition
    failure: PageCondition | None = None
    expert: tuple[str, ...] = ()


class Folder:
    """Pages that are files: bring your own site.

    folder: has the HTML files, with their scripts and pictures, and ``tasks.yaml``.

    Raises:
        InvalidArgument: the folder or the file is missing, or a task is wrong; names the task and the key.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    def __init__(self, folder: str):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InvalidArgument(f"folder: there is no folder {str(folder)!r:.200}", key="folder")
        self._tasks = {task.id: task for task in _read(self.folder / TASKS_FILE)}
        for task in self._tasks.values():
            if not self._file(task.start).is_file():
                raise InvalidArgument(
                    f"task {task.id}: start: there is no file {task.start!r} in {self.folder}", key="start"
                )
        self._content = _digest(self.folder)
        self._pages = Files(self.folder)
        self._task: WebTask | None = None
        self._steps: list[Command] = []

    def tasks(self, split: str) -> Iterable[Task]:
        return [
            Task(task.id, split, task.type, digest=self._task_digest(task))
            for task in self._tasks.values()
            if task.split == split
        ]

    def open(self, browser: Browser, task: Task) -> str:
        self._task = self._tasks[task.id]
        self._steps = [parse(action) for action in self._task.expert]
        browser.open("/" + self._task.start.lstrip("/"), self._serve)
        return self._task.instruction

    def outcome(self, browser: Browser) -> Standing:
        assert self._task is not None
        if self._steps and browser.last == self._steps[0]:
            self._steps = self._steps[1:]
        if self._task.success.holds(browser):
            return Standing(1.0, over=True, success=True)
        failed = self._task.failure is not None and self._task.failure.holds(browser)
        return Standing(over=failed)

    def expert(self, browser: Browser) -> Command | None:
        """The first action of the file that was not done yet."""
        return self._steps[0] if self._steps else None

    def _serve(self, request: PageRequest) -> Any:
        hidden = request.path.strip("/") == TASKS_FILE  # it has the answers
        return self._pages(PageRequest("GET", "/no such page", []) if hidden else request)

    def _file(self, start: str) -> Path:
        root = self.folder.resolve()
        path = (root / start.partition("?")[0].lstrip("/")).resolve()
        return path if path.is_relative_to(root) else root

    def _task_digest(self, task: WebTask) -> str:
        content = f"{self._content} {task.model_dump_json(exclude={'id', 'split', 'expert'})}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def _read(path: Path) -> list[WebTask]:
    rows = read_mapping(path, keys="tasks").get("tasks")
    if not isinstance(rows, list) or not rows:
        raise InvalidArgument("tasks must be a list of tasks", key="tasks", where=path)
    tasks: dict[str, WebTask] = {}
    for number, row in enumerate(rows, 1):
        task_id = row.get("id") if isinstance(row, dict) else None
        task_name = f"{path}, task {number}"
        if isinstance(task_id, str) and task_id:
            task_name = f"{path}, task {task_id:.80}"
        try:
            task = WebTask.model_validate(row)
            for action in task.expert:
                parse(action)
        except ValidationError as error:
            raise explain(error, WebTask.model_fields, task_name) from None
        except CallError as error:
            raise InvalidArgument(f"expert: {error}", where=task_name) from None
        if task.id in tasks:
            raise InvalidArgument("another task has this id", where=task_name)
        tasks[task.id] = task
    return list(tasks.values())


def _digest(folder: Path) -> str:
    """Identifies the contents of the pages."""
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != TASKS_FILE)
    if len(paths) > MOST_FILES:
        raise InvalidArgument(
            f"folder: {folder} has {len(paths)} files", key="folder", advice=f"at most {MOST_FILES} are served"
        )
    for path in paths:
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
