"""What is tested: an endpoint, and what is known about the engine behind it."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_deploy.catalog import Catalog, Questions
from dflash_deploy.catalog.models import Acceptance, Family
from dflash_deploy.checks.outcome import CheckSkipped
from dflash_deploy.client import Endpoint, EndpointError
from dflash_deploy.plan import Plan
from dflash_deploy.plan.command import model_path
from dflash_deploy.serve.engines import ENGINES, Engine

ROOM = 200
"""Tokens for a short answer."""

ROOM_TO_THINK = 4000
"""The same from a model that cannot leave out thinking."""

FEW_STREAMS = 6
"""Requests of a burst where nobody said how many the engine answers at the same time."""


@dataclass(frozen=True)
class EndpointUnderTest:
    """What a check may count on; `None` is for what nobody said.

    `engine` is the one that should be there, `locked` whether `dflash_deploy.serve.gateway.auth` stands in front of it,
    `weights` the path that it was told to load. `drafter_thinks`: the drafter was trained on answers with thinking,
    which can be switched on. Lengths are in tokens. `acceptance` is what was
    measured for the pair. `baseline` answers without a drafter.
    """

    endpoint: Endpoint
    questions: Questions
    engine: Engine | None = None
    locked: bool = False
    drafting: bool | None = None
    sees: bool | None = None
    thinks: bool | None = None
    must_think: bool = False
    drafter_thinks: bool = False
    calls_tools: bool | None = None
    weights: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_body_mib: int | None = None
    trained_context: int | None = None
    acceptance: tuple[Acceptance, ...] = ()
    baseline: Endpoint | None = None

    @property
    def room(self) -> int:
        """Tokens that a short answer may take."""
        return self.within(ROOM_TO_THINK if self.must_think else ROOM)

    def within(self, tokens: int) -> int:
        """So many tokens of an answer, or half of the context where that is less."""
        return tokens if self.max_model_len is None else min(tokens, self.max_model_len // 2)

    def needs_general(self, asked: str) -> None:
        """Raises CheckSkipped where the model can be asked nothing but what its family lists."""
        if self.questions.limits:
            raise CheckSkipped(asked, self.questions.limits)


def deployed_endpoint(endpoint: Endpoint, plan: Plan, baseline: Endpoint | None = None) -> EndpointUnderTest:
    """The endpoint of a deployment, all that its plan says being known."""
    settings, family, engine = plan.settings, plan.pair.family, plan.engine.kind
    return EndpointUnderTest(
        endpoint,
        family,
        engine=engine,
        locked=engine.gateway,
        drafting=plan.speculating,
        sees=plan.pair.sees,
        thinks=bool(settings.reasoning_parser),
        must_think=family.thinking == "always",
        drafter_thinks=plan.drafting and _drafter_thinks(family),
        calls_tools=bool(settings.tool_call_parser),
        weights=model_path(plan) if engine.reports_weights else None,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_body_mib=settings.max_body_mib if engine.gateway else None,
        trained_context=plan.pair.drafter.trained_context,
        acceptance=tuple(family.acceptance) if plan.drafting else (),
        baseline=baseline,
    )


def unknown_endpoint(endpoint: Endpoint, catalog: Catalog, baseline: Endpoint | None = None) -> EndpointUnderTest:
    """An endpoint that no deployment is known of: the engine says what it says, the served name may be a known one."""
    named = [pair for pair in catalog.pairs.values() if pair.target.served_name == endpoint.model]
    questions: Questions = named[0].family if named else Questions()
    trained = {pair.drafter.trained_context for pair in named}
    return EndpointUnderTest(
        endpoint,
        questions,
        engine=_engine_of(endpoint),
        must_think=bool(named) and named[0].family.thinking == "always",
        drafter_thinks=bool(named) and _drafter_thinks(named[0].family),
        # two forms of a model may go with two drafters
        trained_context=trained.pop() if len(trained) == 1 else None,
        acceptance=tuple(named[0].family.acceptance) if named else (),
        baseline=baseline,
    )


def _drafter_thinks(family: Family) -> bool:
    return bool(family.drafter_thinking) and family.thinking in {"on", "off"}


def _engine_of(endpoint: Endpoint) -> Engine | None:
    try:
        return ENGINES.get(endpoint.metrics().engine or "")
    except EndpointError:
        return None
