"""The models that an endpoint serves, as a check that it answers at all."""

from __future__ import annotations

from http import HTTPStatus

from dflash_deploy.client.api import Endpoint
from dflash_deploy.client.completion import EndpointError
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.redact import Redact

START_IT = "start it first: dflash-deploy up; `dflash-deploy status` says whether it is starting"
"""The hint if the endpoint of a deployment does not answer."""


def check_answering(endpoint: Endpoint, *, hint: str, redact: Redact) -> None:
    """Raise EngineNotReady if nothing answers, as on a free port, or if /health answers 503, as while weights load.

    Any other answer is enough, an error included: the requests after it say what is wrong.
    """
    try:
        status = endpoint.status_without_key("GET", "/health")
    except EndpointError as problem:
        if problem.unconnected:
            raise _unconnected(endpoint, problem, hint, redact) from None
        return
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise EngineNotReady(f"{endpoint.url} is not ready: GET /health answered {status}", hint=hint)


def _unconnected(endpoint: Endpoint, problem: EndpointError, hint: str, redact: Redact) -> EngineNotReady:
    return EngineNotReady(redact(f"nothing answers on {endpoint.url}: {problem.unconnected}"), hint=hint)


def served_names(endpoint: Endpoint, *, hint: str, redact: Redact) -> list[str]:
    """The model names that an endpoint serves. Raises EngineNotReady for no answer, and without `endpoint.model`."""
    try:
        names = endpoint.models()
    except EndpointError as problem:
        if problem.unconnected:
            raise _unconnected(endpoint, problem, hint, redact) from None
        raise EngineNotReady(redact(f"{endpoint.url} does not answer: {problem}"), hint=hint) from None
    if not names or (endpoint.model and endpoint.model not in names):
        raise EngineNotReady(
            f"{endpoint.url} does not serve {endpoint.model or 'any model'}", hint=f"it serves: {', '.join(names)}"
        )
    return names
