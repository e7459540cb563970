"""A receiver of OTLP over gRPC, with the service that OpenTelemetry publishes; its packages come with vLLM."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class Receiver(TraceServiceServicer):  # type: ignore[misc]
    """Keeps what engines export."""

    def __init__(self) -> None:
        self.url = ""
        self._exported: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name is the service's
        """Accept a batch of spans."""
        self._exported.append(request)
        return ExportTraceServiceResponse()

    @property
    def services(self) -> set[str]:
        """The names of the services that exported spans."""
        resources = [part.resource for request in list(self._exported) for part in request.resource_spans]
        return {
            attribute.value.string_value
            for resource in resources
            for attribute in resource.attributes
            if attribute.key == "service.name"
        }

    def spans(self, name: str) -> list[Any]:
        """The spans of a name, in the order in which they came."""
        scopes = [
            scope for request in list(self._exported) for part in request.resource_spans for scope in part.scope_spans
        ]
        return [span for scope in scopes for span in scope.spans if span.name == name]

    def wait_for(self, name: str, trace: str, seconds: float = 30) -> dict[str, int]:
        """The whole numbers among the attributes of a trace's span; engines export every five seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for span in self.spans(name):
                if span.trace_id.hex() == trace:
                    return {attribute.key: attribute.value.int_value for attribute in span.attributes}
            time.sleep(0.2)
        raise TimeoutError(f"no span {name} of trace {trace} in {seconds:.0f} s")


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver at a free port of this machine."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
