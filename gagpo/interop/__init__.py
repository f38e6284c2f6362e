"""Adapters to other suites, each an optional extra."""
