"""Defaults that several packages share."""

MAX_TOKENS = 512
"""Maximum tokens of a response, unless the settings or a request say otherwise."""
