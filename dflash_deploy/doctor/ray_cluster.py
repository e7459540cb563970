"""The Ray cluster that runs the engine's workers: whether it answers, with the same release, and has enough GPUs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.intake.documents import EngineAnswer
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.asking import run_question
from dflash_deploy.serve.settings import Settings

QUESTION = "dflash_deploy.serve.ray_question"

LIMIT = 45.0
"""Seconds for Ray to answer. Connecting to a cluster on this machine took 8 (Ray 2.60, two busy cores)."""

CONNECT_LIMIT = 3.0
"""Seconds for a connection to the head. Ray itself tries for minutes where nothing listens."""


def ray_cluster(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Ask the cluster with the Ray of the engine's environment; nothing without DISTRIBUTED_EXECUTOR=ray."""
    address = plan.settings.ray_address
    if not plan.settings.uses_ray or plan.runtime != "native" or not address:
        return
    if not _listens(address):
        fix = (
            f"correct {Settings.ray_address}, or start the cluster: `ray start --head --port {address.split(':')[-1]}`"
        )
        yield Check("ray", "no", f"nothing listens at {Settings.ray_address}={address}", fix)
        return
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    heard = run_question([sys.executable, "-m", QUESTION, address], environment, seconds=LIMIT)
    yield judge_cluster(plan, heard.answer)


def judge_cluster(plan: Plan, answered: EngineAnswer | None) -> Check:
    """The result for what the cluster answered; `None` if it gave no answer in time."""
    address, needed = plan.settings.ray_address, plan.settings.tensor_parallel_size or 1
    if answered is None:
        saw = f"Ray gave no answer for {address} within {LIMIT:.0f} s"
        return Check("ray", "no", saw, "run `ray status` on the head")
    if answered.unaskable:
        fix = "install the cluster's own release into the environment of the engine: `pip install ray==VERSION`"
        return Check("ray", "no", answered.unaskable, fix)
    if answered.refused:
        return Check("ray", "no", answered.refused, _fix_for(answered.refused))
    version, nodes, gpus = (answered.decided.get(name, "0") for name in ("version", "nodes", "gpus"))
    saw = f"Ray {version} answers at {address}; alive nodes: {nodes}, GPUs: {gpus}"
    if gpus.isdecimal() and int(gpus) < needed:
        fix = f"add nodes with GPUs to the cluster, or lower {Settings.tensor_parallel_size}"
        return Check("ray", "no", f"{saw}, fewer than {Settings.tensor_parallel_size}={needed}", fix)
    return Check("ray", "ok", saw)


def _fix_for(refusal: str) -> str:
    if "ersion mismatch" in refusal:
        return "install the cluster's releases of Ray and Python into the environment of the engine"
    return "this machine must be a node of the cluster: `ray start --address HOST:PORT`, then `ray status`"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_LIMIT):
            return True
    except OSError:
        return False
