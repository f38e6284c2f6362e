"""What this folder offers to the rest of the package."""

from gagpo.envs.offers import EnvironmentOffer

OFFER = EnvironmentOffer(
    environments={"WebShop-v0": "gagpo.envs.webshop.env:WebShopEnv"},
    renamed_arguments={"gagpo/WebShop-v0": {"shopper": "expert_mode"}},
)
