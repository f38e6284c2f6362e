"""Checks that this machine gives correct results."""
