"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(environments={"Storeroom-v0": "gagpo.envs.tools.storeroom:StoreroomEnv"})
