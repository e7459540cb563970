"""A client of one endpoint: the OpenAI API and the counters of /metrics."""
