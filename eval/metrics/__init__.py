"""What training logs: each number's meaning, and what the numbers say of a run."""
