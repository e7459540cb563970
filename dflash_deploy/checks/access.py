"""Checks of authentication and of the served model name."""

from __future__ import annotations

import secrets

from dflash_deploy.checks.check import CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.redact import Secret
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.serve.settings import Settings

Routes = tuple[tuple[str, str], ...]

# Routes that must return 401 without the API key.
GUARDED: Routes = (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"))

# Routes that vLLM leaves open and `dflash_deploy.serve.gateway.auth` must close.
LEFT_OPEN: Routes = (("GET", "/metrics"), ("GET", "/docs"), ("POST", "/invocations"), ("POST", "/tokenize"))


@check("live")
def liveness(tested: EndpointUnderTest) -> CheckOutcome:
    """The liveness route returns 200 and an unknown path returns an error."""
    nowhere = f"/{secrets.token_hex(8)}"
    alive, unknown = tested.endpoint.status("GET", LIVENESS), tested.endpoint.status("GET", nowhere)
    asked = f"GET {LIVENESS}, GET {nowhere}"
    hint = "no engine runs there: check with `dflash-deploy status`"
    if alive == 200 and unknown < 400:
        hint = "the server accepts every path: check that this is the engine's port"
    return CheckOutcome(alive == 200 and unknown in {401, 403, 404, 405}, asked, f"{alive}, {unknown}", hint)


@check("models", quick=True)
def served(tested: EndpointUnderTest) -> CheckOutcome:
    """The model name of the deployment is served, with the weights and the context length of the deployment."""
    listed, name = tested.endpoint.served(), tested.endpoint.model
    found = next((one for one in listed if one.name == name), None)
    if found is None:
        hint = f"clients must request one of these names; {Settings.served_model_name} in .env is `{name}`"
        return CheckOutcome(False, "GET /v1/models", ", ".join(one.name for one in listed) or "no model", hint)
    got, right = name, True
    if tested.weights and found.root and found.root != tested.weights:
        got, right = f"{name} is {found.root}, not {tested.weights}", False
    elif tested.max_model_len and found.max_model_len and found.max_model_len != tested.max_model_len:
        got = f"{name} accepts {found.max_model_len} tokens, {Settings.max_model_len} is {tested.max_model_len}"
        right = False
    return CheckOutcome(
        right, "GET /v1/models", got, "another engine answers, or .env has changed: run `dflash-deploy restart`"
    )


@check("auth", quick=True)
def auth(tested: EndpointUnderTest) -> CheckOutcome:
    """Requests without the API key, or with a wrong one, get 401 on every route of the server."""
    routes = {*GUARDED, *(LEFT_OPEN if tested.locked else ())}
    if tested.locked:
        # HEAD has no effect on an open route; a POST of /pause would have one
        known = {path for _, path in routes} | {LIVENESS}
        described = {*tested.endpoint.paths(), *(tested.engine.routes if tested.engine is not None else ())}
        routes |= {("HEAD", path) for path in described - known}
    stranger = Secret(secrets.token_urlsafe(32))
    answers = {f"{method} {path}": tested.endpoint.status_without_key(method, path) for method, path in sorted(routes)}
    answers["GET /v1/models with a wrong key"] = tested.endpoint.status("GET", "/v1/models", key=stranger)
    opened = {route: status for route, status in answers.items() if status != 401}
    hint = "restart the engine; if the routes stay open, it was not started by dflash_deploy.serve"
    if opened:
        got = ", ".join(f"{route} {status}" for route, status in opened.items())
        return CheckOutcome(False, f"{len(answers)} requests without the API key", got, hint)
    return CheckOutcome(True, f"{len(answers)} requests without the API key, or with a wrong one", "401 to each")


@check("name", quick=True)
def wrong_name(tested: EndpointUnderTest) -> CheckOutcome:
    """A request for an unknown model name is refused, not answered by another model."""
    name = f"no-such-model-{secrets.token_hex(4)}"
    if tested.engine is not None and not tested.engine.refuses_other_models:
        # serving_base.py of SGLang 0.5.23
        raise CheckSkipped(f"the model {name}", "this engine ignores the model name of a request")
    try:
        answer = tested.endpoint.chat(tested.questions.text.ask, max_tokens=8, model=name)
    except EndpointError as problem:
        got = f"refused with {problem.status}" if problem.status else str(problem)
        return CheckOutcome(
            problem.status in {400, 404}, f"the model {name}", got, "OpenAI's API returns 404 for an unknown model"
        )
    hint = "a proxy rewrites the model name, or a cache answers in place of the engine"
    return CheckOutcome(False, f"the model {name}", f"answered: {answer.text.strip()}", hint)
