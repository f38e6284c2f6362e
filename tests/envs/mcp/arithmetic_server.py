"""A small MCP server for tests: arithmetic, and every kind of misbehaviour on request."""

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("arithmetic")
remembered = []


@server.tool()
def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


@server.tool()
def remember(word: str) -> str:
    """Keep a word; the answer is all that were kept."""
    remembered.append(word)
    return " ".join(remembered)


@server.tool()
def misbehave(way: str) -> str:
    """Break in some way."""
    if way == "hang":
        time.sleep(1000)
    elif way == "crash":
        os._exit(3)
    elif way == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        return str(child.pid)
    elif way == "huge":
        return "x" * 1_000_000
    elif way == "raise":
        raise ValueError("broken on purpose")
    elif way == "environment":
        return " ".join(sorted(os.environ))
    return "done"


if __name__ == "__main__":
    server.run()
