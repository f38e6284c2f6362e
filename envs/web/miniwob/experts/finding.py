"""Looking something up: in texts, tables, search results, trees and books."""

from __future__ import annotations

import re

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts.common import (
    between,
    click,
    click_named,
    fields,
    fill,
    first,
    ordinal,
    quoted,
    submit,
)
from gagpo.envs.web.page import WebPage

RESULTS_PER_PAGE = 3


def word(instruction: str, page: WebPage) -> Command | None:
    paragraph = first(line for line in page.lines if line.role == "text")
    if paragraph is None:
        return None
    answer = paragraph.name.split()[ordinal(instruction) - 1].strip(",.")
    return fill(page, (first(fields(page)), answer))


def _rows(page: WebPage) -> dict[str, str]:
    cells = (line.name.partition(" | ") for line in page.lines if " | " in line.name)
    return {name: value for name, _, value in cells}


def table_cell(instruction: str, page: WebPage) -> Command | None:
    name = between(instruction, "the value of ", " into the")
    return fill(page, (first(fields(page)), _rows(page).get(name, "")))


def table_cells(instruction: str, page: WebPage) -> Command | None:
    rows = _rows(page)
    above = ""
    for line in page.lines:
        if line.role == "text":
            above = line.name.rstrip(":")
        if line.role == "input" and above in rows and line.value != rows[above]:
            return Command("type", line.number, rows[above])
    return submit(page)


def search_result(instruction: str, page: WebPage) -> Command | None:
    field = first(fields(page))
    if field is None:
        return None
    query = quoted(instruction)[0]
    index = ordinal(instruction) - 1
    results = [line for line in page.find("link", "clickable") if not re.fullmatch(r"\d+|[<>]", line.name)]
    if field.value != query:
        return Command("type", field.number, query)
    if not results:
        return click_named(page, "Search", "button")
    pages = {line.name: line for line in page.find("link")}
    target_page = str(1 + index // RESULTS_PER_PAGE)
    # The current page looks like the others; it is the one that was clicked, or the first one if no way leads back.
    first_page = "" if "<" in pages else "1"
    current_page = next((name for name, line in pages.items() if "focused" in line.states), first_page)
    if current_page == target_page:
        return click(results[index % RESULTS_PER_PAGE])
    return click(pages.get(target_page) or pages.get(">"))


def in_tree(instruction: str, page: WebPage) -> Command | None:
    name = quoted(instruction)[0]
    closed = first(line for line in page.find("clickable") if any("expandable" in state for state in line.states))
    return click_named(page, name, "clickable") or click(closed)


def in_book(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"Find (.*?) in the contact book and click on their (.*?)\.", instruction)
    if match is None:
        return None
    heading = first(line for line in page.lines if line.role == "heading")
    if heading is None or heading.name != match[1]:
        return click_named(page, ">", "link")
    labels = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}
    below = False
    for line in page.lines:
        below = below or line.name == labels.get(match[2])
        if below and line.usable:
            return click(line)
    return None


EXPERTS = {
    "find-word": word,
    "read-table": table_cell,
    "read-table-2": table_cells,
    "search-engine": search_result,
    "navigate-tree": in_tree,
    "phone-book": in_book,
}
