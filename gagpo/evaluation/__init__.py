"""Measuring whatever can act: runs, models, players behind a server; and giving saved episodes credit again."""
