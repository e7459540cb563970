"""The endpoint as the rest of the code sees it: the OpenAI API and the counters of /metrics."""

from dflash_deploy.client.api import Answer, Endpoint, EndpointError
from dflash_deploy.client.images import plain_png
from dflash_deploy.client.metrics import SpecCounters, read_counters
from dflash_deploy.client.streaming import Timed, streamed, time_completion

__all__ = [
    "Answer",
    "Endpoint",
    "EndpointError",
    "SpecCounters",
    "Timed",
    "plain_png",
    "read_counters",
    "streamed",
    "time_completion",
]
