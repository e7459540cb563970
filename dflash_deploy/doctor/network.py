"""The port of the endpoint, the hub, and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.hub import HubAnswer, ask_hub
from dflash_deploy.doctor.subject import Subject
from dflash_deploy.host import listener_on
from dflash_deploy.plan import Plan

CLOCK_TOLERANCE = timedelta(minutes=5)
"""By how much clocks may differ; beyond it certificates begin to look expired, or not yet valid."""

_ELSEWHERE = "see to the network or its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror"
_NEW_TOKEN = "make a new token at https://huggingface.co/settings/tokens and set HF_TOKEN in .env"  # noqa: S105 - advice


def port(subject: Subject, plan: Plan) -> Iterator[Check]:
    """Whether the port is free, or held by this deployment's own engine."""
    host, number = plan.values["DFLASH_BIND"], int(plan.values["DFLASH_PORT"])
    state = subject.engine_state
    if state.alive and state.address == f"{host}:{number}":
        yield Check("port", "ok", f"{host}:{number} is held by this deployment's own engine")
    elif listener_on(host, number):
        saw = f"something else already listens on {host}:{number}"
        yield Check("port", "no", saw, "set another DFLASH_PORT in .env, or see who it is: `ss -ltnp`")
    else:
        yield Check("port", "ok", f"{host}:{number} is free")


def hub(subject: Subject, plan: Plan) -> Iterator[Check]:
    """The hub, the token, and by the same answer the clock."""
    repos = [model.repo for model in subject.weights if model.repo]
    if not repos:
        yield Check("hub", "skipped", "both models come with dflash-deploy; nothing is to be fetched")
        return
    missing = [model for model in subject.weights if model.repo and not model.there]
    gated = next((model.repo or "" for model in missing if model.gated), "")
    answer = ask_hub(subject.hub, subject.token, repos[-1])
    yield judge_hub(subject.hub, answer, token=bool(subject.token), missing=bool(missing), gated=gated)
    yield judge_clock(answer)


def judge_hub(hub: str, answer: HubAnswer, *, token: bool, missing: bool, gated: str) -> Check:
    """A hub that cannot be used is in the way only while weights are missing.

    `gated` is the repository among the missing ones that wants an account, empty where none does.
    """
    in_the_way: Status = "no" if missing else "warning"
    beside = "" if missing else "; all weights are on disk already"
    if answer.status is None:
        clock = "; compare the clock, too" if "certificate" in answer.problem.lower() else ""
        return Check("hub", in_the_way, f"{hub} cannot be reached: {answer.problem}{beside}", f"{_ELSEWHERE}{clock}")
    if token and answer.status == 401:
        saw = f"{hub} refuses HF_TOKEN (401); with a stale token not even public models can be fetched{beside}"
        return Check("hub", in_the_way, saw, f"{_NEW_TOKEN}, or leave it empty for public models")
    if not token and answer.status in {401, 404}:
        saw = (
            f"{hub} shows no such repository without a token ({answer.status}): it is private, renamed or gone{beside}"
        )
        return Check("hub", in_the_way, saw, _NEW_TOKEN)
    if answer.status >= 400:
        saw = f"{hub} answers with {answer.status}{beside}"
        return Check("hub", "warning", saw, "try again later")
    if gated and not token:
        saw = f"{hub} answers, but {gated} is gated and there is no HF_TOKEN"
        return Check("hub", "no", saw, f"accept its licence on its page, then {_NEW_TOKEN}")
    return Check("hub", "ok", f"{hub} answers{' and takes HF_TOKEN' if token else '; no HF_TOKEN is set'}")


def judge_clock(answer: HubAnswer) -> Check:
    """By the date of the hub's answer."""
    if answer.ahead is None:
        return Check("clock", "skipped", "the hub did not say its time")
    seconds = answer.ahead.total_seconds()
    differs = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the hub's"
    if abs(answer.ahead) <= CLOCK_TOLERANCE:
        return Check("clock", "ok", f"this clock is {differs}")
    saw = f"this clock is {differs}: certificates look expired or not yet valid"
    return Check("clock", "no", saw, "set it: `timedatectl set-ntp true`")
