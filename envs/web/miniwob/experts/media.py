"""Posts of a social network: find those of a user and press a button under them."""

from __future__ import annotations

import re

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts.common import click, quoted, submit
from gagpo.envs.web.page import Line, WebPage

_ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def _posts(page: WebPage, user: str) -> list[list[Line]]:
    """What can be used under each post of the user."""
    posts: list[list[Line]] = []
    inside = False
    for line in page.lines:
        if line.role == "text" and re.search(r"@\w+", line.name):
            inside = user in line.name.split()
            if inside:
                posts.append([])
        elif inside and line.usable:
            posts[-1].append(line)
    return posts


def _has(line: Line, word: str) -> bool:
    return word in " ".join(line.states).split()


def post(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"user (@\w+)", instruction)
    if match is None:
        return None
    name = quoted(instruction)[0]
    for line in (line for lines in _posts(page, match[1]) for line in lines):
        if line.name.startswith(name) or _has(line, _ICONS.get(name, "no icon")):
            return click(line)
    for line in (line for lines in _posts(page, match[1]) for line in lines):
        if _has(line, "more"):
            return click(line)
    return None


def posts(instruction: str, page: WebPage) -> Command | None:
    match = re.search(r"on (all|\d+) posts? by (@\w+)", instruction)
    if match is None:
        return None
    icon = _ICONS[quoted(instruction)[0]]
    lines = [line for post in _posts(page, match[2]) for line in post if _has(line, icon)]
    pressed = [line for line in lines if len(" ".join(line.states).split()) > 1]
    count = len(lines) if match[1] == "all" else int(match[1])
    waiting = [line for line in lines if line not in pressed]
    return click(waiting[0]) if len(pressed) < count and waiting else submit(page)


EXPERTS = {"social-media": post, "social-media-all": posts, "social-media-some": posts}
