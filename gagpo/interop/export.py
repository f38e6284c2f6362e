"""Export of successful episodes as conversations in the ``messages`` form, which ``sft.data`` and other trainers read.

The source is a journal of an evaluation, or a file of episodes from ``gagpo eval --episodes`` or from a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gagpo.agents.episodes import Episode, episodes_in
from gagpo.agents.prompts import Message, Prompt, find_prompt
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.envs.lookup import maker
from gagpo.eval.journal import JournalError, read_journal
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings

About = Mapping[str, object]
"""What a journal tells of its episodes: model, environment, split and its hash."""


def export(source: Path, out: Path) -> int:
    """Write the successful episodes of ``source``, one conversation a line, to the file ``out``; return their number.

    The messages of a run's episodes have the wording of the run's prompt, those of other files of the prompt ``plain``.

    Raises: InvalidArgument if ``out`` exists, or if the source holds no successful episode.
    """
    if out.exists():
        raise InvalidArgument(f"{out} exists: choose another path")
    solved = [episode for episode in read_source(source)[1] if episode.success and episode.turns]
    if not solved:
        raise InvalidArgument(f"{source} holds no successful episode")
    place = source.resolve().parents[1]
    settings = RunFolder.open(place).stored_settings() if (place / "config.yaml").is_file() else None
    rows = [{"messages": conversation(episode, *_wording(settings, episode.environment or ""))} for episode in solved]
    durable.write_text(out, "".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def conversation(episode: Episode, prompt: Prompt, instructions: str) -> list[Message]:
    """The messages of a full conversation: what the model was shown, and its responses."""
    messages = prompt.opening(instructions)
    for number, turn in enumerate(episode.turns):
        if number:
            text = prompt.turn_text(instructions, episode.turns[:number], turn.observation, ())
        else:
            text = prompt.first_text(instructions, turn.observation, ())
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": turn.response}]
    return messages


def _wording(settings: RunSettings | None, name: str) -> tuple[Prompt, str]:
    """The prompt and the instructions of a run's environment."""
    if settings is None:
        return find_prompt("plain"), ""
    environment = next(one for one in settings.all_environments if one.name == name)
    return environment.context.prompt, str(getattr(maker(environment.environment.id), "instructions", ""))


def read_source(source: Path) -> tuple[About, list[Episode]]:
    """What the source tells of its episodes, and the episodes; InvalidArgument if it holds none."""
    if not source.is_file():
        raise InvalidArgument(f"there is no file {source}")
    about: About
    try:
        about, found = read_journal(source)
    except JournalError:
        about, found = {}, episodes_in(source)
    episodes = list(found)
    if not episodes:
        raise InvalidArgument(f"{source} holds no whole episode")
    return about, episodes
