"""Models behind a chat server: the client, and the agent that plays through it."""
