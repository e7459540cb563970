"""The models that an endpoint serves, as a check that it answers at all."""

from __future__ import annotations

from dflash_deploy.client.api import Endpoint
from dflash_deploy.client.completion import EndpointError
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.redact import Redact


def served_names(endpoint: Endpoint, *, hint: str, redact: Redact) -> list[str]:
    """The model names that an endpoint serves. Raises EngineNotReady for no answer, and without `endpoint.model`."""
    try:
        names = endpoint.models()
    except EndpointError as problem:
        raise EngineNotReady(redact(f"{endpoint.url} does not answer: {problem}"), hint=hint) from None
    if not names or (endpoint.model and endpoint.model not in names):
        raise EngineNotReady(
            f"{endpoint.url} does not serve {endpoint.model or 'any model'}", hint=f"it serves: {', '.join(names)}"
        )
    return names
