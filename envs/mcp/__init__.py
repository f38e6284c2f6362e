"""Environments with the tools of an MCP server."""
