"""`capacity`: how many replicas a load needs, from the figures of `bench` here or from the speed model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import write_output
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.features.capacity.load_text import UserLoad, parse_load
from dflash_deploy.features.capacity.measured import expected_service, measured_service, prompts_tell
from dflash_deploy.features.capacity.page import capacity_page
from dflash_deploy.features.capacity.simulation import Service, Simulated, Sized, drafts_pay_below, size
from dflash_deploy.intake.documents import BenchRow, BenchRun
from dflash_deploy.operations.bench import figures_in, last_figures, rows_below_limit
from dflash_deploy.operations.plan import DEFAULTS, chosen
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.plan.speed import prompt_token_seconds
from dflash_deploy.planning import make_plan
from dflash_deploy.serve.settings import Settings

Basis = Literal["bench", "speed model"]

WITH, WITHOUT = "with drafts", "without drafts"

USUAL_BUDGET = 2048
"""Tokens of a step if no setting says: the least default of the engines."""

FARTHER = 2.0
"""Ratio of the load's prompts to the longest measured ones from which their time is called an extrapolation."""


@dataclass(frozen=True)
class Capacity:
    """The replicas that a load needs, by way of drafting. `sides` has one or both of WITH and WITHOUT.

    `basis` is where the speed comes from, `source` says it in words. `pay_below` is the least number of sequences at
    the same time at which drafts are no faster; `None` if there is none, or not both sides are known. `notes` are
    limits of the result.
    """

    plan: Plan
    load: UserLoad
    basis: Basis
    source: str
    sides: Mapping[str, Sized]
    pay_below: int | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """The `data` of `capacity --json`."""
        return {
            "profile": self.plan.profile.name,
            "engine": self.plan.engine.name,
            "pair": self.plan.pair.name,
            **self.load.document(),
            "basis": self.basis,
            "source": self.source,
            "with_drafts": _side(self.sides.get(WITH)),
            "without_drafts": _side(self.sides.get(WITHOUT)),
            "drafts_pay_below": self.pay_below,
            "notes": self.notes,
        }

    def page(self) -> str:
        """The curves as one HTML file."""
        lead = (f"Speed from {self.source}.", *(sentence(name, one, self.load) for name, one in self.sides.items()))
        return capacity_page(
            f"{self.plan.pair.title}: {self.load.users} users", self.load, self.sides, (*lead, *self.notes)
        )


def capacity(
    directory: Path,
    written: str,
    choice: Choice = DEFAULTS,
    *,
    figures: Path | None = None,
    report: Path | None = None,
) -> Capacity:
    """The replicas that a load needs, such as `users=200,think=30s,in=1500,out=500,p95_ttft=2s`.

    `figures` is a file of `bench --save` instead of the last run of `bench` in this directory; `report` is written as
    HTML. Raises BadInput for a load or file that is not valid, NotPossible if nothing is known of the speed.
    """
    load = parse_load(written)
    made = chosen(directory, choice)
    plain = _without_drafts(made, Deployment(directory)) if made.speculating else made
    _check_length(made, load)
    measured = _figures(directory, made, choice, figures)
    services = _measured(measured, made, plain, load) if measured else _expected(made, plain, load)
    if not services:
        raise NotPossible(
            "nothing is known of the speed here: `bench` has not run, and the speed model does not cover this engine",
            hint="measure it: `dflash-deploy up`, then `dflash-deploy bench --baseline`",
        )
    sides = {name: size(service, load) for name, service in services.items()}
    both = len(services) > 1
    found = Capacity(
        plan=made,
        load=load,
        basis="bench" if measured else "speed model",
        source=_source(measured),
        sides=sides,
        pay_below=drafts_pay_below(services[WITH], services[WITHOUT]) if both else None,
        notes=tuple(_notes(made, load, measured, sides)),
    )
    if report is not None:
        write_output(report, found.page())
    return found


def sentence(name: str, sized: Sized, load: UserLoad) -> str:
    """The result of one side in words."""
    if sized.replicas is None:
        one = sized.figures
        return (
            f"{name}: no number of replicas meets the goal; a single user sees a p95 TTFT of {one.ttft_p95_s:.2f} s "
            f"and a p95 answer of {one.answer_p95_s:.1f} s."
        )
    count = "1 replica" if sized.replicas == 1 else f"{sized.replicas} replicas"
    return f"{name}: {count} for {load.users} users; one serves up to {sized.users_of_one} of them within the goal."


def _without_drafts(made: Plan, deployment: Deployment) -> Plan:
    values = {**made.values, Settings.dflash_drafter.name: "off"}
    return make_plan(Choice(edited=values), deployment if deployment.exists() else None)


def _check_length(made: Plan, load: UserLoad) -> None:
    longest, needed = made.settings.max_model_len, load.prompt_tokens + load.answer_tokens
    if longest is not None and needed > longest:
        raise BadInput(
            f"in={load.prompt_tokens} and out={load.answer_tokens} are {needed} tokens, more than "
            f"{Settings.max_model_len}={longest}",
            hint=f"--max-model-len {needed} plans for that length, or use a smaller load",
        )


def _figures(directory: Path, made: Plan, choice: Choice, file: Path | None) -> BenchRun | None:
    """The measured figures of this profile and pair; `None` if there are none."""
    if file is not None:
        found = figures_in(file)
        if found.measured.pair not in {"", made.pair.name}:
            raise BadInput(
                f"{file} has figures of {found.measured.pair}, and the plan is for {made.pair.name}",
                hint="name a file that `bench --save` wrote for these models",
            )
        return found
    deployment = Deployment(directory)
    last = last_figures(deployment) if choice.profile is None and deployment.exists() else None
    fits = last is not None and (last.measured.profile, last.measured.pair) == (made.profile.name, made.pair.name)
    return last if fits else None


def _measured(measured: BenchRun, made: Plan, plain: Plan, load: UserLoad) -> dict[str, Service]:
    """The services behind the figures."""
    rows = rows_below_limit(measured)
    expected = None if made.profile.match.gpus == 0 else prompt_token_seconds(made.profile, made.pair)
    drafted = [row for row in rows if row.drafter and row.mtp == made.uses_mtp_head] if made.speculating else []
    unknown = [row for row in rows if row.drafter is None] if made.speculating else []
    # another endpoint may be another machine
    own = [] if measured.measured.baseline_url else [row for row in rows if row.drafter is False]
    kinds = {WITH: (made, drafted or unknown), WITHOUT: (plain, own)}
    found = {
        name: measured_service(
            kept,
            most_sequences=_most_sequences(plan, load),
            chunk=_chunk(plan),
            prompt_steps=prompt_steps_of(plan),
            prompt_token_s=expected,
        )
        for name, (plan, kept) in kinds.items()
    }
    return {name: service for name, service in found.items() if service is not None}


def _expected(made: Plan, plain: Plan, load: UserLoad) -> dict[str, Service]:
    """The services that the speed model expects; it covers no MTP head."""
    plans = {WITH: made, WITHOUT: plain} if made.drafting else {WITHOUT: plain}
    found = {
        name: expected_service(
            plan.profile,
            plan.pair,
            draft_tokens=plan.settings.draft_tokens,
            most_sequences=_most_sequences(plan, load),
            chunk=_chunk(plan),
            prompt_steps=prompt_steps_of(plan),
        )
        for name, plan in plans.items()
    }
    return {name: service for name, service in found.items() if service is not None}


def _most_sequences(plan: Plan, load: UserLoad) -> int:
    """Sequences at the same time: the setting, and those of the load that the cache has room for."""
    asked = plan.settings.max_num_seqs or USUAL_SEQUENCES
    if plan.memory is None:
        return asked
    return max(min(asked, plan.memory.tokens // (load.prompt_tokens + load.answer_tokens)), 1)


def _chunk(plan: Plan) -> int:
    return plan.settings.max_num_batched_tokens or USUAL_BUDGET


def prompt_steps_of(plan: Plan) -> int:
    """The least steps in which the plan's engine computes a prompt."""
    stateful = plan.pair.shape.linear_attention or plan.pair.shape.sliding_attention
    return plan.engine.kind.stateful_prompt_steps if stateful else 1


def _source(measured: BenchRun | None) -> str:
    if measured is None:
        return "the speed model: bytes, bandwidth and acceptance, not measured"
    names = ", ".join(dict.fromkeys(row.workload for row in measured.rows))
    clients = sorted({row.concurrency for row in measured.rows})
    return f"bench of {measured.measured.at} ({names}; concurrency {', '.join(map(str, clients))})"


def _notes(made: Plan, load: UserLoad, measured: BenchRun | None, sides: Mapping[str, Sized]) -> Iterator[str]:
    """What limits the result."""
    asked, most_sequences = made.settings.max_num_seqs, min(sized.service.most_sequences for sized in sides.values())
    if asked is not None and most_sequences < asked:
        tokens = load.prompt_tokens + load.answer_tokens
        room = f"the KV cache has room for {most_sequences} requests of {tokens} tokens"
        yield f"{room}, fewer than {Settings.max_num_seqs}={asked}"
    if measured is None:
        yield "the speed model is off by up to a fifth, and acceptance by more: `bench --baseline` measures both"
        return
    yield from _of_figures(made, load, measured)
    known = min(sized.service.most_known for sized in sides.values())
    if most_sequences > known and any(sized.users_of_one > known for sized in sides.values()):
        beyond = f"steps with more than {known:.0f} sequences are extrapolated"
        yield f"{beyond}: measure up to {most_sequences} of them with `bench --concurrency`"
    if made.speculating and len(sides) == 1:
        missing = WITHOUT if WITH in sides else WITH
        yield f"{missing} nothing was measured: `bench --baseline` measures both"


def _of_figures(made: Plan, load: UserLoad, measured: BenchRun) -> Iterator[str]:
    other = [
        f"{name}={value}" for name, value in measured.measured.settings.items() if made.values.get(name, "") != value
    ]
    if other:
        yield f"measured with other settings: {', '.join(other)}"
    longest = _longest_prompt(measured.rows)
    if load.prompt_tokens > FARTHER * longest:
        how = "from their line" if prompts_tell(measured.rows) else "in proportion, or as the speed model expects"
        yield (
            f"the measured prompts have up to {longest:.0f} tokens: the time of {load.prompt_tokens} is extrapolated "
            f"{how}; `bench --prompts` measures yours"
        )


def _longest_prompt(rows: Sequence[BenchRow]) -> float:
    return max((row.input_tokens / row.requests for row in rows if row.requests), default=0.0)


def _side(sized: Sized | None) -> dict[str, object] | None:
    if sized is None:
        return None
    return {
        "replicas": sized.replicas,
        "users_of_one": sized.users_of_one,
        "tokens_per_s": sized.tokens_per_s,
        "one": _figures_of(sized.figures),
        "curve": [_figures_of(one) for one in sized.curve],
    }


def _figures_of(one: Simulated) -> dict[str, object]:
    return asdict(one)
