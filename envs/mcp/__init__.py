"""Worlds whose tools are those of an MCP server, which runs in a process of its own."""
