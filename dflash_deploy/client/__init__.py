"""The endpoint as the rest of the code sees it: the OpenAI API and the counters of /metrics."""

from dflash_deploy.client.answer import Answer, EndpointError, Served, ToolCall
from dflash_deploy.client.api import Endpoint
from dflash_deploy.client.images import digit_png, plain_png, shape_png
from dflash_deploy.client.metrics import Metrics, SpecCounters, read_counters, read_metrics
from dflash_deploy.client.streaming import Timed, streamed, time_completion

__all__ = [
    "Answer",
    "Endpoint",
    "EndpointError",
    "Metrics",
    "Served",
    "SpecCounters",
    "Timed",
    "ToolCall",
    "digit_png",
    "plain_png",
    "read_counters",
    "read_metrics",
    "shape_png",
    "streamed",
    "time_completion",
]
