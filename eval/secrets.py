"""Settings of a run without secrets, to be shown to others."""

from __future__ import annotations

import re
from pathlib import Path

from gagpo.runs.reading import BadResult, read_text
from gagpo.settings.core_schema import parse_yaml

SECRET = re.compile(r"(?i)api_?key|secret|passw|credential|authorization|token$")
OF_A_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
HIDDEN = "(not shown)"
MOST = 20_000  # values of a file; YAML aliases can multiply without end


def shown_settings(path: Path) -> object:
    """The content of the YAML file without secrets; :class:`BadResult` names a file that cannot be read."""
    try:
        return _Hiding(path).of(parse_yaml(read_text(path)))
    except ValueError as error:
        if isinstance(error, BadResult):
            raise
        raise BadResult(f"{path}: not YAML ({' '.join(str(error).split())[:200]})") from None


class _Hiding:
    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def of(self, value: object) -> object:
        """A copy of ``value`` in which secrets are replaced, at any depth."""
        self.count += 1
        if self.count > MOST:
            raise BadResult(f"{self.path}: more than {MOST:,} values are too many for the settings of a run")
        if isinstance(value, dict):
            return {key: HIDDEN if SECRET.search(str(key)) else self.of(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.of(inner) for inner in value]
        return OF_A_URL.sub(HIDDEN, value) if isinstance(value, str) else value
