"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(environments={"ALFWorld-v0": "gagpo.envs.alfworld.env:ALFWorldEnv"})
