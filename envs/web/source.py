"""The interface of a source of web tasks, and sources by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.registry import Registry
from gagpo.envs.argument_types import require_types
from gagpo.envs.tasks import Task
from gagpo.envs.web.actions import Command
from gagpo.envs.web.browser import Browser


@dataclass(frozen=True)
class Standing:
    """How an episode stands.

    reward: what it earns if it is over, else 0.
    over: the task is done, or can no longer be done.
    success: the task is solved.
    state: what decides about the future but cannot be seen on the page; part of the state key.
    truncated_reward: what it earns if it is not over and the turn limit ends it.
    """

    reward: float = 0.0
    over: bool = False
    success: bool = False
    state: str = ""
    truncated_reward: float = 0.0


@runtime_checkable
class WebSource(Protocol):
    """Tasks on web pages.

    splits: names of the splits, the first one for training.
    """

    splits: ClassVar[tuple[str, ...]]

    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of one of ``splits``."""

    def open(self, browser: Browser, task: Task) -> str:
        """Open the first page of ``task`` with ``browser.open``; returns the instruction."""

    def outcome(self, browser: Browser) -> Standing:
        """How the episode stands after an action. Must not change the page."""

    def expert(self, browser: Browser) -> Command | None:
        """The next action of an expert who sees ``browser.page``; None without one, or if it is at a loss."""


def _check(thing: Any, title: str) -> None:
    missing = [name for name in ("splits", "tasks", "open", "outcome", "expert") if not hasattr(thing, name)]
    if not isinstance(thing, type) or missing:
        lacks = f" (it has no {', '.join(missing)})" if isinstance(thing, type) else ""
        raise InvalidArgument(
            "is not a source of web tasks", where=title, advice=f"give a class with the methods of WebSource{lacks}"
        )


SOURCES: Registry[type[WebSource]] = Registry(
    "source of web tasks",
    "gagpo.web_sources",
    {
        "miniwob": "gagpo.envs.web.miniwob.source:MiniWoB",
        "folder": "gagpo.envs.web.folder:Folder",
        "webshop": "gagpo.envs.web.shop:ShopSite",
    },
    _check,
)


def make_source(name: str, options: dict[str, Any]) -> WebSource:
    """The source called ``name`` (or ``module:Name``), built with ``options``.

    Raises:
        InvalidArgument: there is no such source, or it takes no such option, or one of another type.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"source must be a name such as miniwob (got {name!r:.80})", key="source")
    source_class = SOURCES.find(name)
    parameters = list(inspect.signature(source_class).parameters)
    for option in options:
        if option not in parameters:
            raise InvalidArgument(f"source {name} takes no option {option!r:.80}", advice=hint(str(option), parameters))
    require_types(f"source {name}", source_class, options)
    try:
        return source_class(**options)
    except TypeError as error:
        raise InvalidArgument(error, where=f"source {name}") from None
