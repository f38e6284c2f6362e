"""Training: collecting episodes, updating the model, checkpoints, the warm start."""
