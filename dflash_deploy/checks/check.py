"""A check of `test`: a named function of the endpoint under test, whose outcome is one line of the report.

The endpoint under test comes with the known facts about the engine behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import Acceptance, Family, Questions
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.document import Documented, Hidden, Seconds
from dflash_deploy.plan.command import model_path
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import ENGINES, Engine
from dflash_deploy.serve.engines.vllm import TEXT_ONLY
from dflash_deploy.serve.settings import Settings

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check: whether it is right, what was asked, what came, and a hint if it is wrong.

    `figures` are numbers for the report, by name: `tokens_per_second` at concurrency 1, `acceptance_length` and
    the same by workload. `of_model`: a wrong answer may be the model's own, and not a fault of the deployment.
    """

    right: bool
    asked: str
    got: str
    hint: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    of_model: bool = False


class CheckSkipped(Exception):
    """Raised when a check cannot decide right from wrong; `reason` says why."""

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(reason)
        self.asked = asked
        self.reason = reason


@dataclass(frozen=True)
class CheckResult(Documented):
    """One check of `test`."""

    name: str
    """Name of the check, as in docs/reference/checks.md and for `--only`."""
    status: CheckStatus
    """Its result. `skipped`: it cannot tell right from wrong here; `got` says why."""
    seconds: Seconds
    """Duration of the check in seconds."""
    asked: str
    """What was requested."""
    got: str
    """What came back, or why the check was skipped or not run."""
    hint: str = ""
    """What to do if it failed; empty otherwise."""
    figures: Hidden[Mapping[str, float]] = field(default_factory=dict)
    silent: Hidden[bool] = False
    """It timed out without an answer."""


ROOM = 200  # tokens for a short answer
ROOM_TO_THINK = 4000  # tokens for a short answer of a model that always thinks
DEFAULT_MAX_NUM_SEQS = 6  # the engine's max_num_seqs that a burst assumes if it is unknown

# Provides an endpoint of the same target without drafts for the time of a block.
Baseline = Callable[[], AbstractContextManager[Endpoint]]

# Gives the cause and the fix of an answer that is an error, from what is known of the engine; empty if unknown.
Explain = Callable[[EndpointError], str]


def no_explanation(problem: EndpointError) -> str:
    """Explain nothing."""
    return ""


@dataclass(frozen=True)
class EndpointUnderTest:
    """What is known about the endpoint; `None` means unknown.

    `engine` is the expected engine, `locked` whether `dflash_deploy.serve.gateway.auth` guards it, `weights` the path
    that it loads. `drafter_thinks`: the drafter was trained on answers with thinking, which can be switched on. Lengths
    are in tokens. `prefix_caching` is ENABLE_PREFIX_CACHING; `None` leaves it to the engine. `acceptance` is the
    published acceptance of target and draft model. `baseline` provides an endpoint without a drafter.
    `explain` gives a hint for a request that the engine refuses or fails at.
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
    prefix_caching: bool | None = None
    acceptance: tuple[Acceptance, ...] = ()
    baseline: Baseline | None = None
    explain: Explain = no_explanation

    @property
    def room(self) -> int:
        """Tokens that a short answer may take."""
        return self.within(ROOM_TO_THINK if self.must_think else ROOM)

    def within(self, tokens: int) -> int:
        """Return the tokens for an answer, limited to half of the context."""
        return tokens if self.max_model_len is None else min(tokens, self.max_model_len // 2)

    def needs_general(self, asked: str) -> None:
        """Raise CheckSkipped if the model only knows the questions that its family lists."""
        if self.questions.limits:
            raise CheckSkipped(asked, self.questions.limits)


def deployed_endpoint(
    endpoint: Endpoint, plan: Plan, baseline: Baseline | None = None, *, explain: Explain = no_explanation
) -> EndpointUnderTest:
    """Return the endpoint of a deployment with everything that its plan says."""
    settings, family, engine = plan.settings, plan.pair.family, plan.engine.kind
    return EndpointUnderTest(
        endpoint,
        family,
        engine=engine,
        locked=True,
        drafting=plan.speculating,
        sees=takes_images(plan),
        thinks=reasons(plan),
        must_think=family.thinking == "always",
        drafter_thinks=plan.drafting and _drafter_thinks(family),
        # without that setting the engine says by its answer whether the chat template has tools
        calls_tools=bool(settings.tool_call_parser) if engine.knows(Settings.tool_call_parser) else None,
        weights=model_path(plan) if engine.reports_weights else None,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_body_mib=settings.max_body_mib,
        trained_context=plan.pair.drafter.trained_context,
        prefix_caching=settings.enable_prefix_caching,
        acceptance=family.own_acceptance if plan.drafting else (),
        baseline=baseline,
        explain=explain,
    )


def reads_tool_calls(plan: Plan) -> bool:
    """Return whether answers can have tool calls. An engine without that setting reads them by the chat template.

    A template of EXTRA_ARGS is not read here, and counts as one with tools.
    """
    if plan.engine.kind.knows(Settings.tool_call_parser):
        return bool(plan.settings.tool_call_parser)
    replaced = any(word.startswith("--chat-template") for word in plan.settings.extra_args)
    return replaced or plan.pair.family.tool_call_parser is not None


def reasons(plan: Plan) -> bool:
    """Return whether answers can have a reasoning part. An engine without that setting reads it by the template."""
    if plan.engine.kind.knows(Settings.reasoning_parser):
        return bool(plan.settings.reasoning_parser)
    return plan.pair.family.thinking != "none"


def takes_images(plan: Plan) -> bool:
    """Return whether a deployment takes images: its target does, and `.env` does not leave the vision tower out."""
    settings = plan.settings
    text_only = TEXT_ONLY in settings.extra_args or (plan.pair.target.projector and not settings.mmproj_file)
    return plan.pair.sees and not text_only


def unknown_endpoint(endpoint: Endpoint, catalog: Catalog, baseline: Baseline | None = None) -> EndpointUnderTest:
    """Return an endpoint without a known deployment: its metrics name the engine, its served name may be known."""
    named = [pair for pair in catalog.pairs.values() if pair.target.served_name == endpoint.model]
    questions: Questions = named[0].family if named else Questions()
    trained = {pair.drafter.trained_context for pair in named}
    return EndpointUnderTest(
        endpoint,
        questions,
        engine=_engine_of(endpoint),
        must_think=bool(named) and named[0].family.thinking == "always",
        drafter_thinks=bool(named) and _drafter_thinks(named[0].family),
        # two quantizations of a model may have different drafters
        trained_context=trained.pop() if len(trained) == 1 else None,
        acceptance=named[0].family.own_acceptance if named else (),
        baseline=baseline,
    )


def _drafter_thinks(family: Family) -> bool:
    return family.drafter_thinking in {True, "both"} and family.thinking in {"on", "off"}


def _engine_of(endpoint: Endpoint) -> Engine | None:
    try:
        return ENGINES.get(endpoint.metrics().engine or "")
    except EndpointError:
        return None


CheckFunction = Callable[[EndpointUnderTest], CheckOutcome]


@dataclass(frozen=True)
class EndpointCheck:
    """A check by name. `run` raises CheckSkipped and EndpointError.

    `quick`: fast even on a slow engine, so that `up` ends with it.
    """

    name: str
    run: CheckFunction
    quick: bool = False


def check(name: str, *, quick: bool = False) -> Callable[[CheckFunction], EndpointCheck]:
    """Return a decorator that makes a function the check `name`; see EndpointCheck."""

    def decorated(run: CheckFunction) -> EndpointCheck:
        return EndpointCheck(name, run, quick)

    return decorated
