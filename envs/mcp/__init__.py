"""Environments whose tools are those of an MCP server, which runs in its own process."""
