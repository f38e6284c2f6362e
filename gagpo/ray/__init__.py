"""A run spread over a Ray cluster: trainer ranks, vLLM servers and pools of environments, placed, watched, replaced.

``driver`` places the ranks and starts them again from the last checkpoint when one is lost; ``rank``, ``server`` and
the hosts of ``pool``, which make many nodes look like one pool, are what runs in the cluster. Ray is imported by
``driver`` and ``actors`` alone, and only with ``gagpo train --ray``.
"""
