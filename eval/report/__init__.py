"""The report of a run: one HTML page without scripts."""
