"""A client of one endpoint: the OpenAI API and the counters of /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily
from dflash_deploy.serve.engines.counters import SpecCounters

if TYPE_CHECKING:
    from dflash_deploy.client.api import Endpoint
    from dflash_deploy.client.completion import Completion, EndpointError, ServedModel, ToolCall
    from dflash_deploy.client.images import digit_png, plain_png, shape_png
    from dflash_deploy.client.metrics import Metrics, read_counters, read_metrics
    from dflash_deploy.client.names import START_IT, check_answering, served_names
    from dflash_deploy.client.rereading import REREADERS, AnswerInTokens, Rereader, TokenRead
    from dflash_deploy.client.streaming import TimedCompletion, streaming_body, time_completion
else:
    __getattr__ = lazily(
        __name__,
        {
            ".api": ("Endpoint",),
            ".completion": ("Completion", "EndpointError", "ServedModel", "ToolCall"),
            ".images": ("digit_png", "plain_png", "shape_png"),
            ".metrics": ("Metrics", "read_counters", "read_metrics"),
            ".names": ("START_IT", "check_answering", "served_names"),
            ".rereading": ("REREADERS", "AnswerInTokens", "Rereader", "TokenRead"),
            ".streaming": ("TimedCompletion", "streaming_body", "time_completion"),
        },
    )

__all__ = [
    "AnswerInTokens",
    "Completion",
    "Endpoint",
    "EndpointError",
    "Metrics",
    "REREADERS",
    "Rereader",
    "START_IT",
    "ServedModel",
    "SpecCounters",
    "TimedCompletion",
    "TokenRead",
    "ToolCall",
    "check_answering",
    "digit_png",
    "plain_png",
    "read_counters",
    "read_metrics",
    "served_names",
    "shape_png",
    "streaming_body",
    "time_completion",
]
