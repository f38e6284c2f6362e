"""The client of an MCP server, which passes on every answer of a tool. Imported only where the package mcp is used."""

from __future__ import annotations

from mcp import ClientSession
from mcp.types import CallToolResult


class LenientSession(ClientSession):
    """A session that does not compare an answer with the tool's ``outputSchema``.

    The package raises an error for a difference and drops the answer. The model reads answers as text, so it gets them
    as they are.
    """

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        pass
