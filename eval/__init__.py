"""Measuring: success rates on fixed panels, with intervals, tests and pictures."""
