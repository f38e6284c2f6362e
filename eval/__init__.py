"""Measuring: success rates on fixed task sets, with intervals, tests and pictures."""
