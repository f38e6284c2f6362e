"""What is wrong with settings."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class SettingsError(GagpoError, ValueError):
    """Settings that cannot be used; the message names file, key and remedy."""
