"""The shop of ``gagpo/WebShop-v0`` as a site: the same pages, goals and rewards, with links and a form."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tasks import Task
from gagpo.envs.web.actions import Command
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.page import Line, WebPage
from gagpo.envs.web.server import NOT_FOUND, PageRequest, PageResponse, fields
from gagpo.envs.web.source import Standing
from gagpo.envs.webshop import expert
from gagpo.envs.webshop.env import open_catalogue
from gagpo.envs.webshop.goals import KINDS
from gagpo.envs.webshop.pages import BACK, DONE, INDEX, PageElement, PageState, Shop, parse_action
from gagpo.envs.webshop.render import address

_STYLE = """
body {font: 16px sans-serif; max-width: 44em; margin: 1em auto; line-height: 1.5; white-space: pre-line}
a, button {display: inline-block; margin: .15em .5em .15em 0; padding: .1em .6em; border: 1px solid #888;
  border-radius: 4px; background: #eee; color: #000; font: inherit; text-decoration: none}
a[aria-checked=true] {background: #246; color: #fff}
p {margin: .3em 0}
"""


class ShopSite:
    """The shop as a site that needs no script. The reward of a purchase is that of ``gagpo/WebShop-v0``.

    goals, data, products, catalogue_seed: as of :class:`gagpo.envs.webshop.env.WebShopEnv`.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")

    def __init__(
        self,
        goals: str = "synthetic",
        data: str | Path | None = None,
        products: int = 1_000,
        catalogue_seed: int = 0,
    ):
        if goals not in KINDS:
            raise InvalidArgument(f"unknown goals {goals!r:.80}", advice=f"choose one of {', '.join(KINDS)}")
        self.goals = goals
        self.store = open_catalogue(data, products, catalogue_seed)
        self.shop = Shop(self.store)
        self.states: dict[str, PageState] = {}
        """The states of the pages that were linked in this episode, by path."""

    def tasks(self, split: str) -> Iterable[Task]:
        return self.store.tasks(self.goals, split)

    def open(self, browser: Browser, task: Task) -> str:
        self.states.clear()
        browser.open(self._path(self.shop.start(task.id)), self._serve)
        return self.shop.goal(task.id).instruction

    def outcome(self, browser: Browser) -> Standing:
        state = self._state(browser.page)
        if state is None or state.kind != DONE:
            return Standing()
        score = self.shop.verdict(state)
        return Standing(score.reward, over=True, success=score.success)

    def expert(self, browser: Browser) -> Command | None:
        """The shop's expert, which knows the goal's product."""
        page = browser.page
        state = self._state(page)
        action = None if state is None else expert.next_action(self.shop, state)
        name, argument = parse_action(action or "") or ("", "")
        if name == "click":
            return _click(page, argument)
        if name != "search":
            return None
        field = next(page.find("input"), None)
        if field is None:
            return _click(page, BACK)
        return _click(page, "search") if field.value == argument else Command("type", field.number, argument)

    def _state(self, page: WebPage) -> PageState | None:
        return self.states.get(page.path.partition("?")[0])

    def _path(self, state: PageState) -> str:
        """The path of a page. Its name is a digest, so that any text of a shop makes a plain address."""
        name = hashlib.sha256(address(self.shop, state).encode("utf-8", "replace")).hexdigest()[:12]
        path = f"/{state.kind}/{name}"
        self.states[path] = state
        return path

    def _serve(self, request: PageRequest) -> PageResponse:
        state = self.states.get(request.path)
        if state is None:
            return NOT_FOUND
        query = fields(request.form).get("q")
        if query is not None:
            results = self.shop.search(state, query)
            return PageResponse(location=self._path(results or state))
        elements = self.shop.page(state).elements
        goal = self.shop.goal(state.task).instruction
        body = "\n".join(self._html(state, element) for element in elements if not _is_instruction(element, goal))
        page = (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Shop</title><style>{_STYLE}</style>{body}</html>"
        )
        return PageResponse(page.encode("utf-8", "replace"))

    def _html(self, state: PageState, piece: PageElement) -> str:
        text = html.escape(piece.text)
        if piece.kind == "text":
            return f"<h1>{text}</h1>" if state.kind == INDEX else f"<p>{text}</p>"
        if piece.kind == "search":
            box = '<input name=q aria-label="Search" maxlength=500 autocomplete=off>'
            return f'<form action="{self._path(state)}">{box}<button>{text}</button></form>'
        target = self._path(self.shop.press(state, piece))
        if piece.group is not None:
            chosen = "true" if piece.kind == "chosen" else "false"
            return f'<a role=radio aria-checked={chosen} href="{target}">{text}</a>'
        return f'<a href="{target}">{text}</a>'


def _is_instruction(piece: PageElement, goal: str) -> bool:
    """The observation begins with the instruction already."""
    return piece.kind == "text" and (piece.text.strip() == "Instruction:" or piece.text == goal)


def _click(page: WebPage, label: str) -> Command | None:
    name = " ".join(label.lower().split())
    lines = page.find("link", "button", "radio")
    line: Line | None = next((line for line in lines if line.name.lower() == name), None)
    return None if line is None else Command("click", line.number)
