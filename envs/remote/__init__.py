"""Environments that other machines step: OpenEnv servers, asked for tasks over HTTP and for episodes over WebSockets."""
