"""Learning from the environment's expert, a teacher model, and the policy's own good episodes."""
