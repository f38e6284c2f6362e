"""A run spread over a Ray cluster: trainer ranks and vLLM servers, placed, watched and restarted.

``driver`` places the ranks and restarts them from the last checkpoint when one is lost. ``rank`` and ``server`` run in
the cluster. Ray is imported by ``driver`` and ``actors`` alone, and only with ``gagpo train --ray``.
"""
