"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(environments={"Terminal-v0": "gagpo.envs.terminal.env:TerminalEnv"})
