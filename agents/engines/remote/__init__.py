"""An engine whose tokens are sampled by vLLM servers: in other processes, on other devices, on other machines.

``wire`` says what is asked and what counts as an answer, ``client`` asks one server, ``replicas`` deals requests out
over several, ``transfer`` brings them the weights, ``server`` and ``supervisor`` start and end servers on this machine,
``extension`` is what runs inside a server, and ``engine`` puts these together.
"""
