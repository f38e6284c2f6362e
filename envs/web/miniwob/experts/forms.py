"""Texts, passwords, dates and other fields."""

from __future__ import annotations

import itertools
import re

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts.common import (
    between,
    click,
    click_named,
    fields,
    fill,
    first,
    quoted,
    submit,
)
from gagpo.envs.web.page import WebPage


def text(instruction: str, page: WebPage) -> Command | None:
    return fill(page, (first(fields(page)), quoted(instruction)[0]))


def changed_case(instruction: str, page: WebPage) -> Command | None:
    word = quoted(instruction)[0]
    return fill(page, (first(fields(page)), word.upper() if "upper" in instruction else word.lower()))


def shown_text(instruction: str, page: WebPage) -> Command | None:
    line = first(line for line in page.lines if line.role == "text")
    return None if line is None else fill(page, (first(fields(page)), line.name))


def password(instruction: str, page: WebPage) -> Command | None:
    return fill(page, *((line, quoted(instruction)[0]) for line in fields(page)))


def login(instruction: str, page: WebPage) -> Command | None:
    leave = click_named(page, "Cancel", "button")  # of a pop-up that asks whether to leave the page
    return leave or fill(page, *zip(fields(page), quoted(instruction), strict=False))


def date(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"(\d\d)/(\d\d)/(\d{4})", instruction)
    return None if match is None else fill(page, (first(fields(page)), f"{match[3]}-{match[1]}-{match[2]}"))


def time(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"(\d+):(\d\d) ([AP])M", instruction)
    if match is None:
        return None
    hour = int(match[1]) % 12 + (12 if match[3] == "P" else 0)
    return fill(page, (first(fields(page)), f"{hour:02d}:{match[2]}"))


def spinner(instruction: str, page: WebPage) -> Command | None:
    target = int(between(instruction, "Select ", " with"))
    field = first(fields(page))
    if field is None:
        return None
    now = int(field.value or 0)
    if now == target:
        return submit(page)
    up, down = (line for line in page.find("button") if not line.name)
    return click(up if now < target else down)


def radio_and_text(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"(\d+)\w\w radio .* \"(.*)\" into the (\d+)\w\w textbox", instruction)
    if match is None:
        return None
    radio = list(page.find("radio"))[int(match[1]) - 1]
    if "selected" not in radio.states:
        return click(radio)
    return fill(page, (fields(page)[int(match[3]) - 1], match[2]))


def arithmetic(instruction: str, page: WebPage) -> Command | None:
    for line in page.lines:
        if match := re.fullmatch(r"(-?\d+) ([-+x]) (-?\d+) =", line.name):
            left, right = int(match[1]), int(match[3])
            results = {"+": left + right, "-": left - right, "x": left * right}
            return fill(page, (first(fields(page)), str(results[match[2]])))
    return None


def algebra(instruction: str, page: WebPage) -> Command | None:
    for line in page.lines:
        if match := re.fullmatch(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", line.name):
            left, operator, right, total = match.groups()
            if left == "x":
                solution = int(total) - int(right) if operator == "+" else int(total) + int(right)
            else:
                solution = int(total) - int(left) if operator == "+" else int(left) - int(total)
            return fill(page, (first(fields(page)), str(solution)))
    return None


def autocomplete(instruction: str, page: WebPage) -> Command | None:
    start, end = ([*quoted(instruction), ""] * 2)[:2]
    field = first(fields(page))
    if field is None:
        return None

    def fits(name: str) -> bool:
        return name.lower().startswith(start.lower()) and name.lower().endswith(end.lower())

    if fits(field.value or "") and (field.value or "") != start:
        return submit(page)
    offered = first(line for line in page.find("menuitem", "option", "clickable") if fits(line.name))
    return click(offered) or Command("type", field.number, start)


def movie(instruction: str, page: WebPage) -> Command | None:
    """Fields are named by the text above them, or below them if the page begins with a field."""
    match = re.match(r"Search for (.*?) movies directed by (.*?) from year (\d+)", instruction)
    if match is None:
        return None
    fields = {"genre": match[1], "director": match[2], "year": match[3], "date": match[3]}
    lines = [line for line in page.lines if line.role in ("text", "input")]
    labels_first = bool(lines) and lines[0].role == "text"
    for line, other in itertools.pairwise(lines):
        label, field = (line, other) if labels_first else (other, line)
        text = next((text for name, text in fields.items() if name in label.name.lower()), None)
        if label.role == "text" and field.role == "input" and text is not None and field.value != text:
            return Command("type", field.number, text)
    return submit(page)


EXPERTS = {
    "enter-text": text,
    "enter-text-2": changed_case,
    "enter-text-dynamic": text,
    "enter-password": password,
    "enter-date": date,
    "enter-time": time,
    "login-user": login,
    "login-user-popup": login,
    "text-transform": shown_text,
    "use-spinner": spinner,
    "form-sequence-2": radio_and_text,
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
    "multi-orderings": movie,
    "multi-layouts": movie,
}
