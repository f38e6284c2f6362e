"""The expert, which knows only what an agent is shown."""
