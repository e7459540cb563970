"""Serve a vision-language model on your own GPU with DFlash speculative decoding."""

__version__ = "0.1.0"
