"""Demonstrations by a model behind a server: a large model's way of playing, in a small one's words."""

from __future__ import annotations

from pathlib import Path

from gagpo.agents.calls.formats import find_format
from gagpo.agents.calls.phrasing import Phrasing
from gagpo.agents.calls.toolbox import Toolbox
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode
from gagpo.agents.model import load_tokenizer
from gagpo.agents.prompts import STYLES
from gagpo.agents.setup import make_world
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import Meter
from gagpo.envs.base import Kwargs
from gagpo.envs.tools import tools_of
from gagpo.eval.served import play_demonstrations
from gagpo.settings import RunSettings
from gagpo.settings.warm_start import TeacherSettings


def teacher_episodes(
    settings: RunSettings,
    teacher: TeacherSettings,
    kwargs: Kwargs,
    tasks: list[str],
    meter: Meter,
    work: Path | None = None,
) -> list[Episode]:
    """The episodes of ``tasks`` that the teacher solved, said as the learner will have to say them.

    work: folder in which finished episodes are kept, so that none is paid for twice. Raises
    :class:`gagpo.agents.api.client.ApiError` when the server gives up or a limit is reached, and InvalidArgument when
    not one of them is a success.
    """
    environment = settings.only_world.environment
    played = play_demonstrations(
        teacher.api(),
        environment.id,
        {**kwargs, "split": environment.split},
        tasks,
        seed=settings.warm_start.seed if settings.warm_start else 0,
        temperature=teacher.temperature,
        max_tokens=teacher.max_tokens,
        style=teacher.style,
        history=settings.context.history,
        workers=settings.rollout.lanes,
        concurrency=teacher.concurrency,
        journals=None if work is None else work / "lessons",
        on_finish=meter.advance,
    )
    solved = [episode for episode in played if episode.success and episode.turns]
    if not solved:
        raise InvalidArgument(f"the teacher {teacher.model} solved none of {len(played)} episodes of {environment.id}")
    phrasing = phrasing_of(settings)
    for episode in solved:
        in_learner_style(episode, phrasing)
    return solved


def phrasing_of(settings: RunSettings) -> Phrasing:
    """How the learner will say its actions. A new model's chat template shows calls as Hermes does."""
    world, base = settings.only_world, settings.warm_start.base if settings.warm_start else None
    chosen = world.context
    style = STYLES[chosen.style]
    if not style.calls:
        return Phrasing(style)
    tools = tools_of(make_world(world.environment.id, world.environment.kwargs))
    if base is not None and chosen.calls == "auto":
        return Context(load_tokenizer(base), style, template=chosen.template, tools=tools).phrasing
    return Phrasing(style, Toolbox(tools, find_format("hermes" if chosen.calls == "auto" else chosen.calls)))


def in_learner_style(episode: Episode, phrasing: Phrasing) -> None:
    """Say every turn so that the learner's own parser finds the action that was played.

    A response that it reads so already is kept, thoughts included; any other becomes the action alone. Turns in which
    the teacher gave no action, or one that the world refused, are not imitated.
    """
    in_learner_words(episode, phrasing)
    for turn in episode.turns:
        turn.trainable = turn.valid


def in_learner_words(episode: Episode, phrasing: Phrasing) -> None:
    """Every response from which the learner's parser would take another action than was played becomes that action."""
    for turn in episode.turns:
        if phrasing.read(turn.response).action != turn.action:
            turn.response = phrasing.write(turn)
