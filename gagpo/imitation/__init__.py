"""Imitation beside reinforcement: the world's expert, a teacher model, and the policy's own good episodes."""
