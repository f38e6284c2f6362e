"""Export of successful episodes as conversations in the ``messages`` form, which ``sft.data`` and other trainers read.

The source is a journal of an evaluation, or a file of episodes from ``gagpo eval --episodes`` or from a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gagpo.agents.prompts import Message, Prompt, find_prompt
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode, episodes_in
from gagpo.envs.gateway.stored_episodes import require_no_program
from gagpo.envs.lookup import maker
from gagpo.eval.journal import JournalError, read_journal
from gagpo.eval.trust import module_in, untrusted
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings

JournalMetadata = Mapping[str, object]
"""What a journal stores about its episodes: model, environment, split and its hash."""


def export(source: Path, out: Path, trust_remote_code: bool = False) -> int:
    """Write the successful episodes of ``source``, one conversation a line, to the file ``out``; return their number.

    The messages of a run's episodes are written by the run's prompt, those of other files by the prompt ``plain``.

    trust_remote_code: import the environment that the run's settings name, for its instructions, where it is not part
        of gagpo.

    Raises:
        InvalidArgument: ``out`` exists, or the source holds no successful episode, or one of a program.
        UntrustedCode: the run's environment may not be imported.
    """
    if out.exists():
        raise InvalidArgument("exists already", where=out, advice="choose another path")
    solved = [episode for episode in read_source(source)[1] if episode.success and episode.turns]
    if not solved:
        raise InvalidArgument("holds no successful episode", where=source)
    for episode in solved:
        require_no_program(source, episode.info)
    parent = source.resolve().parents[1]
    settings = RunFolder.open(parent).stored_settings() if (parent / "config.yaml").is_file() else None
    names = sorted({episode.environment or "" for episode in solved})
    prompts = {name: _prompt_of(parent, settings, name, trust_remote_code) for name in names}
    rows = [{"messages": conversation(episode, *prompts[episode.environment or ""])} for episode in solved]
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


def _prompt_of(run: Path, settings: RunSettings | None, name: str, trust_remote_code: bool) -> tuple[Prompt, str]:
    """The prompt and the instructions of the environment called ``name`` of ``run``."""
    if settings is None:
        return find_prompt("plain"), ""
    environment = next((env for env in settings.all_environments if env.name == name), None)
    if environment is None:
        raise InvalidArgument(f"no environment {name!r:.80}, which an episode names", where=f"the settings of {run}")
    env_id = environment.environment.id
    if module_in(env_id) and not trust_remote_code:
        raise untrusted(run, f"the environment {env_id!r:.80}")
    return environment.context.prompt, str(getattr(maker(env_id), "instructions", ""))


def read_source(source: Path) -> tuple[JournalMetadata, list[Episode]]:
    """What the source stores about its episodes, and the episodes; InvalidArgument if it contains none."""
    if not source.is_file():
        raise InvalidArgument("there is no such file, and no run of that name", where=source)
    metadata: JournalMetadata
    try:
        metadata, stored_episodes = read_journal(source)
    except JournalError:
        metadata = {}
        stored_episodes = episodes_in(source)
    episodes = list(stored_episodes)
    if not episodes:
        raise InvalidArgument("holds no whole episode", where=source)
    return metadata, episodes
