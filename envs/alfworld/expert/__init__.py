"""The expert: plays from what an agent is shown, and nothing else."""
