"""Reward functions of users: found by name, called by the names of their parameters, and their values checked."""
