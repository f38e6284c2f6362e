"""A run on disk: its folder, its checkpoints, and the register of its metrics."""
