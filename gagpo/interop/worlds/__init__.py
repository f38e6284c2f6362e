"""Environments of other suites as worlds here."""
