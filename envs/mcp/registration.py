"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(
    environments={"MCP-v0": "gagpo.envs.mcp.env:MCPEnv"},
    renamed_arguments={"gagpo/MCP-v0": {"start_seconds": "start_timeout", "call_seconds": "call_timeout"}},
)
