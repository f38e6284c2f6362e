"""Doors to other suites: our worlds in their trainers, their agents and formats here. Each is an optional extra."""
