"""The port of the endpoint, the Hugging Face Hub, and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.context import DoctorContext
from dflash_deploy.doctor.hub import HubAnswer, ask_hub
from dflash_deploy.host import foreign_bind, listener_on
from dflash_deploy.plan import Plan
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.hub_errors import TOKENS, TRANSIENT
from dflash_deploy.weights.source import without_credentials

CLOCK_TOLERANCE = timedelta(minutes=5)
"""The maximum clock difference; beyond it certificates can look expired or not yet valid."""

_NEW_TOKEN = f"make a new token at {TOKENS} and set {Settings.hf_token} in .env"


def port(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the address is this machine's, and the port is free or held by this deployment's own engine."""
    host, number = plan.settings.dflash_bind, plan.settings.dflash_port
    state = subject.engine_state
    if state.holds(host, number):
        yield Check("port", "ok", f"{host}:{number} is held by this deployment's own engine")
    elif plan.settings.answers_requests and (foreign := foreign_bind(host)) is not None:
        yield Check("port", "no", *foreign)
    elif listener_on(host, number):
        saw = f"another process already listens on {host}:{number}"
        fix = f"set another {Settings.dflash_port} in .env, or find the process with `ss -ltnp`"
        yield Check("port", "no", saw, fix)
    else:
        yield Check("port", "ok", f"{host}:{number} is free")


def hub(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """The Hub, the token, and, from the same response, the clock."""
    repos = [model.repo for model in subject.weights if model.repo]
    if not repos:
        yield Check("hub", "skipped", "both models come with dflash-deploy; nothing to download")
        return
    missing = [model for model in subject.weights if model.repo and not model.there]
    gated = next((model.repo or "" for model in missing if model.gated), "")
    answer = ask_hub(subject.hub, subject.token, repos[-1])
    yield judge_hub(
        without_credentials(subject.hub), answer, token=bool(subject.token), missing=bool(missing), gated=gated
    )
    yield judge_clock(answer)


def judge_hub(hub: str, answer: HubAnswer, *, token: bool, missing: bool, gated: str) -> Check:
    """The result for one response. An unusable Hub is an error only while weights are missing.

    `gated` is a missing repository that requires an account; empty if none does.
    """
    if answer.problem:
        # a busy Hub answers `pull`, which asks several times
        in_the_way: Status = "no" if missing and answer.status not in TRANSIENT else "warning"
        beside = "" if missing else "; all weights are already on disk"
        return Check("hub", in_the_way, f"{answer.problem}{beside}", answer.fix)
    if gated and not token:
        saw = f"{hub} responds, but {gated} is gated and {Settings.hf_token} is not set"
        return Check("hub", "no", saw, f"accept the licence on the repository's page, then {_NEW_TOKEN}")
    accepted = f" and accepts {Settings.hf_token}" if token else f"; {Settings.hf_token} is not set"
    return Check("hub", "ok", f"{hub} responds{accepted}")


def judge_clock(answer: HubAnswer) -> Check:
    """Compare this machine's clock with the date of the Hub's response."""
    if answer.ahead is None:
        return Check("clock", "skipped", "the Hub's response has no date")
    seconds = answer.ahead.total_seconds()
    differs = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the Hub's"
    if abs(answer.ahead) <= CLOCK_TOLERANCE:
        return Check("clock", "ok", f"this clock is {differs}")
    saw = f"this clock is {differs}: certificates look expired or not yet valid"
    return Check("clock", "no", saw, "set the clock: `timedatectl set-ntp true`")
