"""`status --url`: whether any endpoint really answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from http import HTTPStatus

from dflash_deploy.catalog import Questions
from dflash_deploy.client import Endpoint, EndpointError
from dflash_deploy.operations.addresses import CHECK_URL, address_of
from dflash_deploy.operations.probing import PROBE_TIMEOUT, Answered
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.serve.gateway.scopes import LIVENESS


@dataclass(frozen=True)
class EndpointStatus:
    """What an endpoint without a deployment says. `model` is empty if it does not list one."""

    endpoint: str
    model: str
    answered: Answered

    def document(self) -> dict[str, object]:
        """The `data` of `status --url --json`."""
        asked = {name: value for name, value in asdict(self.answered).items() if value is not None}
        return {"endpoint": self.endpoint, "model": self.model, **asked}


def status_url(url: str, key: Secret, *, model: str = "") -> EndpointStatus:
    """Ask any endpoint one question. `model` is the served name to ask, the first one if it is empty.

    An endpoint that does not answer is a state and no error. Raises BadInput.
    """
    place, redact = address_of(url), Redactor([key])
    with Endpoint(place, key, model, proxies=True, timeout=PROBE_TIMEOUT) as endpoint:
        try:
            if endpoint.status_without_key("GET", LIVENESS) == HTTPStatus.SERVICE_UNAVAILABLE:
                return EndpointStatus(f"{place}/v1", model, Answered("starting"))
            endpoint.model = model or next(iter(endpoint.models()), "")
            answer = endpoint.chat(Questions().text.ask, max_tokens=8)
        except EndpointError as problem:
            said = redact(str(problem))
            return EndpointStatus(f"{place}/v1", endpoint.model, Answered("unresponsive", do=CHECK_URL, problem=said))
        length = _acceptance(endpoint)
        ready = Answered("ready", seconds=round(answer.seconds, 2), acceptance_length=length and round(length, 2))
        return EndpointStatus(f"{place}/v1", endpoint.model, ready)


def _acceptance(endpoint: Endpoint) -> float | None:
    """The acceptance length since the start; `None` if it has no counters, or the key does not open them."""
    try:
        return endpoint.counters().acceptance_length
    except EndpointError:
        return None
