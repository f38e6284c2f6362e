"""Whole sample episodes as dialogues: the first successes and the first failures of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gagpo.agents.episodes import read_episodes
from gagpo.eval.report.page import details, text

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


def dialogue(record: Mapping[str, Any]) -> str:
    """One episode record as HTML: what the world said, what the model answered, which action was taken from it.

    Records come from a file: whatever is missing or of another type is shown as best it can be, never raised about.
    """
    turns = [turn for turn in _list(record.get("turns")) if isinstance(turn, dict)]
    won = record.get("success") is True and record.get("outcome") != "failed"
    verdict = '<b class="good">success</b>' if won else '<b class="bad">no success</b>'
    outcome = record.get("outcome")
    ended = "" if won or outcome == "terminated" else f", {text(outcome, 40)}"
    kind = f" ({text(record.get('task_type'), 100)})" if record.get("task_type") else ""
    count = f"{len(turns)} turn{'s' if len(turns) != 1 else ''}"
    body = "".join(_turn(number, turn) for number, turn in enumerate(turns[:MOST_TURNS], 1))
    if len(turns) > MOST_TURNS:
        body += f'<p class="soft">… {len(turns) - MOST_TURNS} more turns</p>'
    return details(f"{verdict}{ended}, {count}: {text(record.get('task', 'unnamed task'), 200)}{kind}", body)


def _turn(number: int, turn: Mapping[str, Any]) -> str:
    marks = []
    if turn.get("valid") is False:
        marks.append('<b class="bad">invalid action</b>')
    if turn.get("reward"):
        marks.append(f"reward {text(turn['reward'], 30)}")
    action = turn.get("action")
    taken = f"action: <code>{text(action, 400)}</code>" if action else "no action found"
    return (
        f'<div class="turn"><div class="world"><div class="who">environment, turn {number}</div>'
        f"<pre>{text(turn.get('observation', ''))}</pre></div>"
        f'<div class="agent"><div class="who">model</div><pre>{text(turn.get("response", ""))}</pre></div>'
        f'<div class="who">{", ".join([taken, *marks])}</div></div>'
    )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
