"""Agents behind a server: the client that asks it, and the agent that plays through the client."""
