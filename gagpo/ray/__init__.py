"""A run on a Ray cluster: trainer ranks and vLLM servers. Ray is imported only with ``gagpo train --ray``."""
