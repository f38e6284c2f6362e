"""The engine ``vllm``: tokens are sampled by vLLM servers, on this machine or elsewhere.

``client`` asks one server, ``replicas`` distributes requests over several, ``transfer`` brings them the weights,
``server`` and ``supervisor`` start and end servers on this machine, and ``engine`` puts these together.
"""
