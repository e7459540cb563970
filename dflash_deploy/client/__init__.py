"""The endpoint as the rest of the code sees it: the OpenAI API and the counters of /metrics."""

from dflash_deploy.client.api import Answer, Endpoint, EndpointError, Served, ToolCall
from dflash_deploy.client.images import digit_png, plain_png, shape_png
from dflash_deploy.client.metrics import Metrics, SpecCounters, read_counters, read_metrics

__all__ = [
    "Answer",
    "Endpoint",
    "EndpointError",
    "Metrics",
    "Served",
    "SpecCounters",
    "ToolCall",
    "digit_png",
    "plain_png",
    "read_counters",
    "read_metrics",
    "shape_png",
]
