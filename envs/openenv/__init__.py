"""Environments on OpenEnv servers: ``http://HOST:PORT``, or several servers separated by commas."""
