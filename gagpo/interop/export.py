"""Episodes in other suites' formats: plain JSON lines, Inspect logs, Hugging Face ``datasets``.

All are read from a journal of an evaluation, or from a file of ``gagpo eval --episodes`` or of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from gagpo.agents.episodes import Episode, read_episodes
from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.eval.journal import JournalError, read_journal

About = Mapping[str, object]
"""What is known of whoever played: model, environment, split and its hash."""


def export(source: Path, form: str, out: Path) -> int:
    """Write the episodes of ``source`` to ``out`` (a folder for ``inspect`` and ``hf``); how many there were.

    Raises InvalidArgument for an unknown form, a place that is taken, or a source without an episode.
    """
    if form not in FORMS:
        raise InvalidArgument(f"unknown form {form!r}; choose one of {', '.join(FORMS)}")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidArgument(f"{out} exists: choose another place")
    about, episodes = open_episodes(source)
    kept = list(episodes)
    if not kept:
        raise InvalidArgument(f"{source} holds no whole episode")
    FORMS[form](kept, about, out)
    return len(kept)


def open_episodes(source: Path) -> tuple[About, Iterator[Episode]]:
    """What is known of whoever played, and the episodes."""
    if not source.is_file():
        raise InvalidArgument(f"there is no file {source}")
    try:
        return read_journal(source)
    except JournalError:
        return {}, _records(source)


def _records(source: Path) -> Iterator[Episode]:
    for number, record in enumerate(read_episodes(source), 1):
        try:
            yield Episode.from_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"{source}, line {number}: not an episode ({error})") from None


def _jsonl(episodes: Iterable[Episode], about: About, out: Path) -> None:
    with out.open("w", encoding="utf-8") as file:
        for episode in episodes:
            record = episode.record(tokens=any(len(turn.response_ids) for turn in episode.turns))
            file.write(json.dumps({**record, "model": about.get("model", "")}) + "\n")


# Inspect and datasets -------------------------------------------------------------------------------------------------


def _inspect(episodes: Iterable[Episode], about: About, out: Path) -> None:
    """One log file that ``inspect view`` opens."""
    try:
        from inspect_ai.dataset import Sample  # noqa: F401
        from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
        from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
        from inspect_ai.scorer import Score
    except ImportError as error:
        raise MissingPackage(f"Inspect's format needs inspect-ai ({error}); install the extra inspect") from None
    samples = []
    for episode in episodes:
        # A try is an epoch of its sample, as Inspect repeats samples.
        messages: list[ChatMessageUser | ChatMessageAssistant] = []
        for turn in episode.turns:
            user, assistant = _sound(turn.observation), _sound(turn.response)
            messages += [ChatMessageUser(content=user), ChatMessageAssistant(content=assistant)]
        samples.append(
            EvalSample(
                id=_sound(episode.task),
                epoch=episode.sample + 1,
                input=_sound(episode.turns[0].observation) if episode.turns else "",
                target="",
                messages=messages,
                output=ModelOutput.from_content("gagpo", _sound(episode.turns[-1].response) if episode.turns else ""),
                scores={"success": Score(value=float(episode.success), metadata={"reward": episode.reward})},
                metadata=_sound({"task_type": episode.task_type, "outcome": episode.outcome, **episode.info}),
            )
        )
    ids: list[str | int] = [sample.id for sample in samples]
    spec = EvalSpec(
        created="1970-01-01T00:00:00+00:00",
        task=_sound(str(about.get("environment", "gagpo"))),
        model=_sound(str(about.get("model", "gagpo"))),
        dataset=EvalDataset(name=_sound(str(about.get("split", ""))), samples=len(samples), sample_ids=ids),
        config=EvalConfig(),
        metadata=_sound({"split_hash": about.get("panel"), "kwargs": about.get("kwargs")}),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_eval_log(EvalLog(eval=spec, samples=samples, status="success"), str(out / "episodes.json"), format="json")


def _datasets(episodes: Iterable[Episode], about: About, out: Path) -> None:
    """A ``datasets.Dataset`` saved to disk: one row an episode, its conversation in chat form."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingPackage(f"this form needs the package datasets ({error}); install the extra data") from None
    rows = []
    for episode in episodes:
        messages = []
        for turn in episode.turns:
            messages += [
                {"role": "user", "content": _sound(turn.observation)},
                {"role": "assistant", "content": _sound(turn.response)},
            ]
        rows.append(
            {
                "task": _sound(episode.task),
                "task_type": _sound(episode.task_type),
                "split": _sound(episode.split),
                "sample": episode.sample,
                "model": _sound(str(about.get("model", ""))),
                "success": episode.success,
                "reward": episode.reward,
                "outcome": episode.outcome,
                "messages": messages,
                "rewards": [turn.reward for turn in episode.turns],
                "actions": [_sound(turn.action) for turn in episode.turns],
            }
        )
    Dataset.from_list(rows).save_to_disk(str(out))


Plain = TypeVar("Plain")


def _sound(value: Plain) -> Plain:
    """A JSON value whose texts UTF-8 can hold: half a character becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # type: ignore[return-value]
    if isinstance(value, list):
        return [_sound(part) for part in value]  # type: ignore[return-value]
    if isinstance(value, dict):
        return {_sound(key): _sound(part) for key, part in value.items()}  # type: ignore[return-value]
    return value


FORMS: dict[str, Callable[[Iterable[Episode], About, Path], None]] = {
    "jsonl": _jsonl,
    "inspect": _inspect,
    "hf": _datasets,
}
