"""Agents behind a server: the client, the agent that talks through it, and episodes that each go their own way."""
