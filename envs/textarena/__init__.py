"""Single-player games of TextArena."""
