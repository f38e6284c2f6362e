"""Tools: actions of an environment that are calls by name, with arguments described by a JSON schema."""

from gagpo.envs.tools.call import CallError, ToolCall, read_call, separate
from gagpo.envs.tools.tool import Arguments, Tool, tools_of

__all__ = ["Arguments", "CallError", "Tool", "ToolCall", "read_call", "separate", "tools_of"]
