"""One of several engines with other settings for a while, out of the router's list, while the others answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.services import member_plan
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan import Choice
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.runtime.select import several_runtime
from dflash_deploy.startup.members import chosen_member
from dflash_deploy.startup.rolling import Note, Routes, take_out

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def plan_with(deployment: Deployment, changes: Mapping[str, str]) -> Plan:
    """The plan of a deployment, or of one of its engines, with some settings changed; `.env` does not change."""
    whole = make_plan(Choice(edited={**deployment.values, **changes}), deployment)
    return whole if deployment.member is None else member_plan(whole, deployment.member)


class ComposeFile:
    """`compose.yaml` of several engines, one of which runs with other settings for a while. It is nothing for others.

    Compose creates that container again, and no other: the labels of the others stay.
    """

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        """`plan` is what `.env` says for the engine."""
        self._number = deployment.member if plan.runtime == "compose" else None
        self._whole = replace(deployment, member=None)
        self._own = plan.values
        # read now: it is needed again whatever happens to .env
        self._all = None if self._number is None else plan_of(self._whole)

    def write(self, plan: Plan) -> None:
        """Write it for an engine that runs with `plan` next."""
        if self._number is None or self._all is None:
            return
        changes = {name: value for name, value in plan.values.items() if value != self._own.get(name, "")}
        other = make_plan(Choice(edited={**self._whole.values, **changes}), self._whole) if changes else self._all
        render(self._whole, self._all, {self._number: other})


@contextmanager
def set_apart(deployment: Deployment, note: Note) -> Iterator[None]:
    """Keep one of several engines out of the router's list as long as the block runs; the only engine stays as it is.

    Its requests end first, and the other engines answer. Raises NotPossible if no other engine gets requests.
    """
    if deployment.member is None:
        yield
        return
    whole = replace(deployment, member=None)
    plan = plan_of(whole)
    member = chosen_member(whole, plan, deployment.member)
    routes = Routes(whole, several_runtime(whole, plan).router.state)
    if not routes.has(member):
        yield
        return
    if not routes.others(member):
        raise NotPossible(
            f"{member.name} is the only one that gets requests", hint="start the others first: `dflash-deploy up`"
        )
    try:
        take_out(member, routes, drain_seconds=plan.settings.drain_seconds, note=note)
        yield
    finally:
        routes.add(member)
        note(f"{member.name} gets requests again")
