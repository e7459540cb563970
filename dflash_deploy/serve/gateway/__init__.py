"""What answers in front of the engine, inside its process: the keys, the body limit, the health probe."""
