"""Supervised fine-tuning: new small models, and training on demonstrations."""
