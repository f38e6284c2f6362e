"""Write the table of metrics into docs/metrics.md, between its two marks, from the register in the code.

python .ci/metrics_table.py
"""

from __future__ import annotations

from pathlib import Path

from gagpo.base.tables import Table
from gagpo.runs.register import SECTIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
MARKS = ("<!-- metrics -->\n", "<!-- end of metrics -->\n")


def metrics() -> str:
    """Every metric with its unit and meaning, in Markdown."""
    parts = []
    for title, rows in SECTIONS.items():
        cells = [[f"`{metric.name}`", metric.unit, metric.sentence] for metric in rows]
        parts.append("\n".join(Table([title, "unit", "meaning"], cells).markdown()))
    return "\n" + "\n\n".join(parts) + "\n\n"


def with_metrics(page: str) -> str:
    """The page with the table of today's code between its marks."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return before + MARKS[0] + metrics() + MARKS[1] + after


if __name__ == "__main__":
    PAGE.write_text(with_metrics(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
