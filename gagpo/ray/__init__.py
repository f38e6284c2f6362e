"""A run spread over a Ray cluster: trainer ranks, vLLM servers and pools of environments, placed, watched, replaced.

``driver`` places the ranks and starts them again from the last checkpoint when one is lost; ``rank``, ``host`` and
``server`` are what runs in the cluster; ``pool`` makes hosts on many nodes look like one pool. Ray is imported by
``driver`` and ``rays`` alone, and only with ``gagpo train --ray``.
"""
