"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(environments={"SQL-v0": "gagpo.envs.sql.env:SQLEnv"})
