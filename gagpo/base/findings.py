"""Results of the checks of ``gagpo doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["failed", "warning", "ok"]


@dataclass
class Finding:
    """The result of one check.

    verdict: ``failed``; ``warning`` if something works but is slow or scarce; ``ok``.
    summary: one line.
    values: numbers, as plain JSON.
    advice: what to do about a failure or warning.
    name, seconds: of the check; filled in by :func:`gagpo.planning.doctor.examine`.
    """

    verdict: Verdict
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    name: str = ""
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The finding as the report shows it."""
        lines = [f"{self.verdict:8s} {self.name:22s} {self.summary} ({self.seconds:.1f} s)"]
        if self.advice:
            lines.append(f"{'':31s} -> {self.advice}")
        return lines
