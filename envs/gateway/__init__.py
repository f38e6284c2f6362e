"""Chat requests over HTTP, in the protocols of OpenAI and Anthropic: read, answered and followed over turns."""
