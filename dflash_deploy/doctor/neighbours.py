"""Whether other machines of the network reach containers whose ports are not published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from dflash_deploy.doctor.check import Check, DoctorContext, at_least
from dflash_deploy.host.ask import ContainerEngine, ask
from dflash_deploy.plan.result import Plan

SHUTS_THEM_OUT = "28"
"""From this version of Docker on, its own rules drop packets from other machines to ports that are not published.
Before, only the policy of FORWARD does (docker.com/blog/docker-engine-28-hardening-container-networking-by-default).
"""

TIMEOUT = 10.0
"""Seconds for iptables, which may wait for the lock of another one."""

Policy = Literal["ACCEPT", "DROP"]


def neighbours(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """The router before several engines answers some routes without a key: its container must be out of reach."""
    engine = subject.facts.container_engine
    if plan.runtime != "compose" or not plan.settings.several_engines or engine is None:
        return
    policy = forward_policy() if engine.local and not shuts_out(engine) else None
    yield judge_neighbours(engine, policy)


def shuts_out(engine: ContainerEngine) -> bool:
    """Whether this Docker itself keeps other machines from containers. Those of a rootless one are in no network."""
    return engine.desktop or engine.rootless or at_least(engine.version, SHUTS_THEM_OUT)


def forward_policy() -> Policy | None:
    """The policy of the chain FORWARD; `None` if it cannot be seen, as by a user who is not root."""
    first = ask("iptables", "-S", "FORWARD", timeout=TIMEOUT).out.partition("\n")[0].split()
    return "DROP" if first[:3] == ["-P", "FORWARD", "DROP"] else "ACCEPT" if first[:2] == ["-P", "FORWARD"] else None


def judge_neighbours(engine: ContainerEngine, policy: Policy | None) -> Check:
    """The result for a Docker and what happens to packets that no rule accepts; `None` if that cannot be seen."""
    if shuts_out(engine) or policy == "DROP":
        return Check("neighbours", "ok", "other machines reach only the published ports of containers")
    version = f"Docker {engine.version} does not keep other machines from containers, version {SHUTS_THEM_OUT} does"
    if policy is None:
        saw = f"{version}; whether its machine does is not seen from here without root"
        fix = "on that machine, `sudo iptables -S FORWARD` must begin with `-P FORWARD DROP`"
        return Check("neighbours", "warning", saw, fix)
    saw = f"{version}, and the policy of FORWARD is ACCEPT: they reach the router, of which some routes need no key"
    return Check("neighbours", "warning", saw, "update Docker, or run `sudo iptables -P FORWARD DROP`")
