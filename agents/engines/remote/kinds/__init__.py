"""What differs between kinds of servers; all else of an engine at servers is the same for each of them.

``base`` says what a kind has to know, ``vllm`` and ``sglang`` know it, ``sglang_transfer`` brings SGLang servers their
weights, and ``vllm_extension`` is what runs inside a vLLM server.
"""
