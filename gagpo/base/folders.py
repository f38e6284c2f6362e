"""Where the suite keeps what it generates and downloads."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """``$GAGPO_DATA``, or ``data`` in the current folder."""
    return Path(os.environ.get("GAGPO_DATA") or "data")
