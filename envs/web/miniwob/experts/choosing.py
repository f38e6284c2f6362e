"""Buttons, links, tabs, sections, dialogs, boxes and lists."""

from __future__ import annotations

import re

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts.common import (
    between,
    click,
    click_named,
    fields,
    first,
    mark,
    next_of,
    ordinal,
    quoted,
    submit,
)
from gagpo.envs.web.page import WebPage


def named_button(instruction: str, page: WebPage) -> Command | None:
    return click_named(page, quoted(instruction)[0])


def only_button(instruction: str, page: WebPage) -> Command | None:
    return click(first(page.find("button")))


def numbered_button(instruction: str, page: WebPage) -> Command | None:
    return click_named(page, between(instruction, "button ", "."), "button")


def button_sequence(instruction: str, page: WebPage) -> Command | None:
    pressed = first(line for line in page.find("button", name="ONE") if "focused" in line.states)
    return click_named(page, "TWO" if pressed else "ONE", "button")


def tab(instruction: str, page: WebPage) -> Command | None:
    return click_named(page, between(instruction, "Click on ", "."), "tab")


def link_behind_tabs(instruction: str, page: WebPage) -> Command | None:
    here = click_named(page, quoted(instruction)[0], "clickable", "link")
    return here or click(next_of(list(page.find("tab")), "selected", "expanded"))


def dialog(instruction: str, page: WebPage) -> Command | None:
    name = quoted(instruction)[0]
    return click_named(page, "Close" if name == "x" else name, "button")


def section(instruction: str, page: WebPage) -> Command | None:
    closed = first(line for line in page.find("tab") if line.name and "collapsed" in line.states)
    return click(closed) or submit(page)


def checkboxes(instruction: str, page: WebPage) -> Command | None:
    names = between(instruction, "Select ", " and click")
    return mark(page, "checkbox", () if names == "nothing" else names.split(", "))


def option(instruction: str, page: WebPage) -> Command | None:
    name = between(instruction, "Select ", " and click")
    chosen = first(line for line in page.find("radio", name=name) if "selected" in line.states)
    return submit(page) if chosen else click_named(page, name, "radio")


def listed(instruction: str, page: WebPage) -> Command | None:
    names = re.split(r" from the (?:scroll )?list", between(instruction, "Select ", " and click"))[0].split(", ")
    single = len(names) == 1 and "scroll list" not in instruction
    for line in page.find("option"):
        chosen = "selected" in line.states
        if (line.name in names and not chosen) or (chosen and line.name not in names and not single):
            return Command("select", line.number)
    return submit(page)


def focus(instruction: str, page: WebPage) -> Command | None:
    return click(fields(page)[max(0, ordinal(instruction) - 1)])


EXPERTS = {
    "click-button": named_button,
    "click-button-sequence": button_sequence,
    "click-link": named_button,
    "click-test": only_button,
    "click-test-2": numbered_button,
    "click-test-transfer": numbered_button,
    "unicode-test": named_button,
    "click-tab": tab,
    **dict.fromkeys(("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard"), link_behind_tabs),
    "click-dialog": dialog,
    "click-dialog-2": dialog,
    **dict.fromkeys(("click-collapsible", "click-collapsible-nodelay"), section),
    **dict.fromkeys(("click-collapsible-2", "click-collapsible-2-nodelay"), link_behind_tabs),
    **dict.fromkeys(("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer"), checkboxes),
    "click-option": option,
    **dict.fromkeys(("choose-list", "click-scroll-list"), listed),
    "focus-text": focus,
    "focus-text-2": focus,
}
