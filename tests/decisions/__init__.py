"""What vLLM's own code decides on each profile's GPU, compared with the plan."""
