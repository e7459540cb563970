"""The endpoint as the rest of the code sees it: the OpenAI API and the counters of /metrics."""

from dflash_deploy.client.api import Answer, Endpoint, EndpointError
from dflash_deploy.client.images import plain_png
from dflash_deploy.client.metrics import SpecCounters, read_counters

__all__ = ["Answer", "Endpoint", "EndpointError", "SpecCounters", "plain_png", "read_counters"]
