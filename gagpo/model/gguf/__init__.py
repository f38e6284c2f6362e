"""Conversion of GGUF files to Hugging Face model folders."""
