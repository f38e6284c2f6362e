"""The mailbox: find a message by its sender and delete, mark, answer or forward it."""

from __future__ import annotations

import re

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts.common import click, first
from gagpo.envs.web.page import Line, WebPage

_NAME = r"([A-Z][\w'-]*)"
_FORMS = (
    (rf"Find the email by {_NAME} and click the trash icon", "trash"),
    (rf"Find the email by {_NAME} and click the star icon", "star"),
    (rf"Find the email by {_NAME} and reply to them with the text \"(.*)\"", "reply"),
    (rf"Find the email by {_NAME} and forward that email to {_NAME}", "forward"),
)


def _icon(page: WebPage, word: str, after: int = 0) -> Line | None:
    return first(
        line
        for line in page.find("clickable")
        if line.number >= after and (line.name.lower() == word or word in " ".join(line.states).split())
    )


def _message(page: WebPage, sender: str) -> Line | None:
    """The line of the list that contains the sender's name."""
    row: Line | None = None
    for line in page.lines:
        if line.number and line.role == "clickable" and not line.name and not line.states:
            row = line
        if line.role == "text" and line.name == sender and row is not None and line.depth == row.depth + 1:
            return row
    return None


def mail(instruction: str, page: WebPage) -> Command | None:
    for pattern, task in _FORMS:
        if match := re.match(pattern, instruction):
            return _act(page, task, *match.groups())
    return None


def _act(page: WebPage, task: str, sender: str, content: str = "") -> Command | None:
    row = _message(page, sender)
    if row is not None:
        return click(_icon(page, task, row.number)) if task in ("trash", "star") else click(row)
    fields = list(page.find("input", "textarea"))
    if task == "reply" and fields:
        written = fields[-1].value == content
        return click(_icon(page, "send-reply")) if written else Command("type", fields[-1].number, content)
    if task == "forward" and fields:
        written = fields[0].value == content
        return click(_icon(page, "send-forward")) if written else Command("type", fields[0].number, content)
    return click(_icon(page, task) or _icon(page, f"email-{task}"))


EXPERTS = dict.fromkeys(
    (
        *("email-inbox", "email-inbox-delete", "email-inbox-important", "email-inbox-star-reply"),
        *("email-inbox-forward", "email-inbox-reply", "email-inbox-noscroll"),
    ),
    mail,
)
