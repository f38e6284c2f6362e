"""Sampling while the model is updated: who owns which weights, what is under way, and how old it may become."""
