"""Write the tables of docs/papers.md, between their marks, from the rows in lab/results.

python .ci/papers_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from gagpo.base.tables import Table
from gagpo.eval.study import Method, Study, read_rows
from gagpo.eval.units import PERCENT, p_value

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers.md"
SECTION = re.compile(r"<!-- (ablations[a-z-]*) -->\n.*?<!-- end of \1 -->\n", re.DOTALL)
PASS_AT = 8


def table(name: str) -> str:
    """The methods of a study in Markdown, the baseline first; empty without rows."""
    path = ROOT / "lab" / "results" / f"{name}.jsonl"
    if not path.exists():
        return ""
    study = Study.of([row for row in read_rows(path) if not row.label.endswith(", averaged")])
    several = any(_at_k(method) is not None for method in study.methods)
    rows = []
    for method in study.methods:
        difference = PERCENT.spread(method.gap, signed=True) if method.gap else ""
        corrected = "" if method.p_holm is None else p_value(method.p_holm)
        cells = [method.label, str(len(method.rows)), PERCENT.spread(method.mean("after")), difference, corrected]
        rows.append([*cells, *([_at_k(method) or ""] if several else [])])
    header = ["", "seeds", "success %", f"minus {study.baseline}", "p", *([f"pass@{PASS_AT} %"] if several else [])]
    return "\n" + "\n".join(Table(header, rows).markdown()) + "\n\n"


def _at_k(method: Method) -> str | None:
    """pass@k before and after training, means over the seeds, in percent; None where it was not measured."""
    pairs = [(row.at_k_before or {}, row.at_k or {}) for row in method.rows]
    rates = [tuple(rates.get("pass@k", {}).get(str(PASS_AT)) for rates in pair) for pair in pairs]
    if any(rate is None for pair in rates for rate in pair):
        return None
    before, after = (100 * sum(column) / len(column) for column in zip(*rates, strict=True))
    return f"{before:.1f} to {after:.1f}"


def with_tables(page: str) -> str:
    """The page with the tables of today's rows between its marks."""
    return SECTION.sub(lambda match: f"<!-- {match[1]} -->\n{table(match[1])}<!-- end of {match[1]} -->\n", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
