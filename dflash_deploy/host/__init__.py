"""Facts about this machine: GPUs, memory, disk, Docker, installed vLLM. It reads and never decides."""
