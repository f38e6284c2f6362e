"""Export of episodes as an Inspect log.

The source is a journal of an evaluation, or a file of episodes from ``gagpo eval --episodes`` or from a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gagpo.agents.episodes import Episode, read_episodes
from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.eval.journal import JournalError, read_journal

About = Mapping[str, object]
"""What a journal tells of its episodes: model, environment, split and its hash."""


def export(source: Path, out: Path) -> int:
    """Write the episodes of ``source`` to the folder ``out`` for ``inspect view``; return their number.

    Raises:
        InvalidArgument: ``out`` exists, or the source holds no episode.
        MissingPackage: Inspect is not installed.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidArgument(f"{out} exists: choose another path")
    about, episodes = read_source(source)
    _write(episodes, about, out)
    return len(episodes)


def read_source(source: Path) -> tuple[About, list[Episode]]:
    """What the source tells of its episodes, and the episodes; InvalidArgument if it holds none."""
    if not source.is_file():
        raise InvalidArgument(f"there is no file {source}")
    about: About
    try:
        about, found = read_journal(source)
    except JournalError:
        about, found = {}, _records(source)
    episodes = list(found)
    if not episodes:
        raise InvalidArgument(f"{source} holds no whole episode")
    return about, episodes


def _records(source: Path) -> Iterator[Episode]:
    for number, record in enumerate(read_episodes(source), 1):
        try:
            yield Episode.from_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"{source}, line {number}: not an episode ({error})") from None


def _write(episodes: Sequence[Episode], about: About, out: Path) -> None:
    """Write one log. A try of a task is an epoch of its sample."""
    try:
        from inspect_ai.dataset import Sample  # noqa: F401
        from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
        from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
        from inspect_ai.scorer import Score
    except ImportError as error:
        raise MissingPackage(f"Inspect's format needs inspect-ai ({error}); install the extra inspect") from None
    samples = []
    for episode in episodes:
        messages: list[ChatMessageUser | ChatMessageAssistant] = []
        for turn in episode.turns:
            user, assistant = _utf8(turn.observation), _utf8(turn.response)
            messages += [ChatMessageUser(content=user), ChatMessageAssistant(content=assistant)]
        samples.append(
            EvalSample(
                id=_utf8(episode.task),
                epoch=episode.sample + 1,
                input=_utf8(episode.turns[0].observation) if episode.turns else "",
                target="",
                messages=messages,
                output=ModelOutput.from_content("gagpo", _utf8(episode.turns[-1].response) if episode.turns else ""),
                scores={"success": Score(value=float(episode.success), metadata={"reward": episode.reward})},
                metadata=_utf8({"task_type": episode.task_type, "outcome": episode.outcome, **episode.info}),
            )
        )
    ids: list[str | int] = [sample.id for sample in samples]
    spec = EvalSpec(
        created="1970-01-01T00:00:00+00:00",
        task=_utf8(str(about.get("environment", "gagpo"))),
        model=_utf8(str(about.get("model", "gagpo"))),
        dataset=EvalDataset(name=_utf8(str(about.get("split", ""))), samples=len(samples), sample_ids=ids),
        config=EvalConfig(),
        metadata=_utf8({"split_hash": about.get("panel"), "kwargs": about.get("kwargs")}),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_eval_log(EvalLog(eval=spec, samples=samples, status="success"), str(out / "episodes.json"), format="json")


Plain = TypeVar("Plain")


def _utf8(value: Plain) -> Plain:
    """A JSON value with lone surrogates replaced by question marks, so that it can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # type: ignore[return-value]
    if isinstance(value, list):
        return [_utf8(part) for part in value]  # type: ignore[return-value]
    if isinstance(value, dict):
        return {_utf8(key): _utf8(part) for key, part in value.items()}  # type: ignore[return-value]
    return value
