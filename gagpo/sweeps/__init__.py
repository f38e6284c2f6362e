"""Sweeps: the runs of all combinations of some values, several at once, with one report."""
