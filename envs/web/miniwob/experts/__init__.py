"""Experts of MiniWoB++ tasks. Each sees only the instruction and the page, as an agent does."""

from collections.abc import Callable

from gagpo.envs.web.actions import Command
from gagpo.envs.web.miniwob.experts import choosing, finding, forms, mail, media
from gagpo.envs.web.page import WebPage

Expert = Callable[[str, WebPage], Command | None]
"""The next action for an instruction and a page; None if it is at a loss. It depends on nothing else, so it also goes
on from where an agent's mistakes led."""

EXPERTS: dict[str, Expert] = {
    **choosing.EXPERTS,
    **forms.EXPERTS,
    **finding.EXPERTS,
    **mail.EXPERTS,
    **media.EXPERTS,
}
"""By kind of task."""
