"""Text environments as ``gymnasium.Env``s. Importing this package registers them, without importing torch."""

import gymnasium

import gagpo.envs.vector  # noqa: F401 (registers how texts are shared between processes)
from gagpo.envs.base import Outcome, Text, TextEnv
from gagpo.envs.tasks import EmptySplit, Task, TaskSet, UnknownTask

__all__ = ["EmptySplit", "Outcome", "Task", "TaskSet", "Text", "TextEnv", "UnknownTask"]


def _register(name: str, entry_point: str) -> None:
    # The passive checker accepts Gymnasium's own spaces only, and TextEnv itself enforces the order of calls.
    gymnasium.register(f"gagpo/{name}", entry_point=entry_point, disable_env_checker=True, order_enforce=False)


_register("ALFWorld-v0", "gagpo.envs.alfworld.env:ALFWorldEnv")
_register("WebShop-v0", "gagpo.envs.webshop.env:WebShopEnv")
_register("Math-v0", "gagpo.envs.math.env:MathEnv")
_register("SQL-v0", "gagpo.envs.sql.env:SQLEnv")
_register("Terminal-v0", "gagpo.envs.terminal.env:TerminalEnv")
_register("Web-v0", "gagpo.envs.web.env:WebEnv")
_register("MCP-v0", "gagpo.envs.mcp.env:MCPEnv")
_register("Storeroom-v0", "gagpo.envs.tools.storeroom:StoreroomEnv")
_register("ScienceWorld-v0", "gagpo.envs.scienceworld.env:ScienceWorldEnv")
_register("Program-v0", "gagpo.envs.program.env:ProgramEnv")
