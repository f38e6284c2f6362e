"""Raw rows of a study: one JSON line per finished piece of work, never done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gagpo.base.renamed import PRESETS, new_metric

FOLDER = Path(__file__).parents[2] / "lab" / "studies"
"""Where rows are kept beside the page that is written from them."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; a last line that an interruption cut short is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield _modernized(row)


def _modernized(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an earlier version with today's names of metrics and credits."""
    row = {new_metric(name): value for name, value in row.items()}
    if isinstance(row.get("credits"), dict):
        row["credits"] = {_new_label(label): value for label, value in row["credits"].items()}
    return row


def _new_label(label: str) -> str:
    """A credit's label, such as ``gagpo@4``, with the credit's new name."""
    name, separator, state = label.partition("@")
    first, space, remainder = name.partition(" ")
    return PRESETS.get(first, first) + space + remainder + separator + state


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row on a line of its own, also behind a line that was cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = not path.exists() or path.read_bytes()[-1:] in (b"\n", b"")
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if whole else "\n") + json.dumps(row) + "\n")
        file.flush()


def has_row(path: Path, **wanted: Any) -> bool:
    """Whether a row has all of these values."""
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in read_rows(path))
