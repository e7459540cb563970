"""In front of the engine, in its process: the check of API keys, the body limit, and the container's health check."""
