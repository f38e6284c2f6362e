"""Doors to other suites: our environments in their trainers, their agents and formats here. Each is an optional extra."""
