"""Whole sample episodes as dialogues: the first successes and the first failures of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gagpo.agents.episodes import read_episodes
from gagpo.eval.report.page import render

MOST_TURNS = 100  # shown of one episode; the page says how many there are


def sample_episodes(path: Path, each: int = 2) -> tuple[list[dict[str, Any]], str]:
    """The first ``each`` successes and failures of an episodes file, and a complaint if it ends in a broken line.

    Reading stops as soon as both are found.
    """
    wins: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    try:
        for record in read_episodes(path):
            if not isinstance(record, dict):
                return wins + losses, f"{path.name}: a line holds no JSON object"
            group = wins if record.get("success") is True and record.get("outcome") != "failed" else losses
            if len(group) < each:
                group.append(record)
            if len(wins) == len(losses) == each:
                break
    except (ValueError, RecursionError) as error:
        return wins + losses, f"{path.name} is broken: {str(error)[:200]}"
    except OSError as error:
        return [], f"{path.name} cannot be read: {error.strerror}"
    return wins + losses, ""


def dialogue(record: Mapping[str, Any]) -> Markup:
    """One episode record as HTML: observations, responses and the actions read from them.

    Records come from a file: a missing or ill-typed part is shown as well as possible and never an error.
    """
    listed = record.get("turns")
    turns = [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []
    won = record.get("success") is True and record.get("outcome") != "failed"
    outcome = record.get("outcome")
    return render(
        "dialogue.html",
        won=won,
        ended="" if won or outcome == "terminated" else str(outcome),
        count=len(turns),
        task=record.get("task", "unnamed task"),
        kind=record.get("task_type") or "",
        turns=turns[:MOST_TURNS],
        more=max(0, len(turns) - MOST_TURNS),
    )
