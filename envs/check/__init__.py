"""Checks of an environment's contract."""
