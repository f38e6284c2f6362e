"""Read ``metrics.jsonl``, also of a run that was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gagpo.base.regular_file import read_bytes
from gagpo.base.renamed import new_metric
from gagpo.runs.reading import BadResult

Metrics = dict[str, float]
"""The numbers of an iteration: a line of ``metrics.jsonl``."""


def metric_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of ``metrics.jsonl``, and the number of damaged lines.

    A killed run leaves a torn line, which is skipped. When resumed, it repeats some iterations, which replace the
    earlier rows.
    """
    if not path.exists():
        return [], 0
    try:
        lines = read_bytes(path).decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise BadResult(f"cannot be read ({error.strerror})", where=path) from None
    rows: list[dict[str, Any]] = []
    broken = 0
    for line in lines:
        if not line.strip():
            continue
        row = metric_row(line)
        if row is None:
            broken += 1
            continue
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
        rows.append(row)
    return rows, broken


def read_metrics(path: Path) -> tuple[list[dict[str, float]], int]:
    """:func:`metric_rows` without values that are not finite numbers."""
    rows, broken = metric_rows(path)
    return [{key: float(value) for key, value in row.items() if _is_number(value)} for row in rows], broken


def metric_row(line: str) -> dict[str, Any] | None:
    """The row of a line; None for a damaged line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_number(record.get("iteration")):
        return None
    return {new_metric(name): value for name, value in record.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
