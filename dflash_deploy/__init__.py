"""From a bare GPU box to a proven, fast, closed endpoint: vLLM with DFlash speculative decoding."""

__version__ = "0.1.0"
