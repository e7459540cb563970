"""Where the engine's OpenTelemetry traces go: the endpoint, its protocol, and the packages that send them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import util

from dflash_deploy.serve.field import is_host
from dflash_deploy.serve.refusal import Refused

# Variables of OpenTelemetry. The first one is read by vLLM (0.32, tracing/otel.py) and SGLang (0.5.23,
# srt/observability/trace.py), which take gRPC without it.
PROTOCOL, SERVICE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SERVICE_NAME"

# Modules that both engines import for any traces. vLLM 0.32 and 0.33 require them; SGLang has them in an extra.
EXPORTERS = ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.exporter.otlp.proto.http")

PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp"

_HOST = r"(?:\[([0-9A-Fa-f:.]+)\]|([^/:@?#\[\]]+))"
_URL = re.compile(rf"(https?)://{_HOST}:([1-9][0-9]{{0,4}})(/[A-Za-z0-9._~/%-]*)?", re.ASCII)


@dataclass(frozen=True)
class TracesEndpoint:
    """A receiver of OTLP. With a path it speaks HTTP, without one gRPC."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def protocol(self) -> str:
        """The protocol, as OpenTelemetry names it."""
        return "http/protobuf" if self.path else "grpc"

    def environment(self, service: str) -> dict[str, str]:
        """The variables of OpenTelemetry beside the engine's arguments; `service` is the name that traces have."""
        return {PROTOCOL: self.protocol, SERVICE: service}


def traces_endpoint(name: str, value: str) -> TracesEndpoint:
    """A URL: http://HOST:4317 (gRPC) or http://HOST:4318/v1/traces (HTTP)."""
    found = _URL.fullmatch(value)
    host = (found[2] or found[3]) if found else ""
    if found is None or not is_host(host) or int(found[4]) > 65535:
        # not shown: it may hold a password
        raise Refused(
            f"{name} is not a valid OTLP endpoint: expected a URL with host and port, without credentials",
            hint=f"write {name} as http://HOST:4317 (gRPC) or http://HOST:4318/v1/traces (HTTP)",
        )
    return TracesEndpoint(found[1], host, int(found[4]), (found[5] or "").rstrip("/"))


def check_exporters(setting: str, engine: str) -> None:
    """Raise Refused if the packages that send traces are missing beside the engine, which would end its start."""
    try:
        missing = [module for module in EXPORTERS if util.find_spec(module) is None]
    except ModuleNotFoundError:
        missing = list(EXPORTERS)
    if missing:
        raise Refused(
            f"{setting} is set, but {engine} has no OpenTelemetry beside it ({missing[0]} is missing)",
            hint=f"empty {setting}, or add `pip install {PACKAGES}` to the engine's image or environment",
        )
