"""Environments on OpenEnv servers: tasks over HTTP, episodes over WebSockets."""
