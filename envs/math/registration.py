"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(environments={"Math-v0": "gagpo.envs.math.env:MathEnv"})
