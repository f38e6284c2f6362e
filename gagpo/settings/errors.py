"""What is wrong with settings."""

from __future__ import annotations

from gagpo.envs.errors import GagpoError


class SettingsError(GagpoError, ValueError):
    """Settings that cannot be used; the message names file, key and remedy."""
