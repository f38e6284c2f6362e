"""An engine whose tokens are sampled by servers: in other processes, on other devices, on other machines.

``wire`` says what counts as an answer, ``kinds`` what vLLM and SGLang are asked, ``client`` asks one server,
``replicas`` deals requests out over several, ``transfer`` brings them the weights, ``server``, ``own`` and
``supervisor`` start and end vLLM servers on this machine, and ``engine`` puts these together.
"""
