"""Weights: download them from the Hugging Face Hub, verify them, and check them before an engine starts."""
