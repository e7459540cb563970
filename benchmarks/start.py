"""Seconds from a start to the first answer: `up`, compared with the engine started by hand."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rows import Row
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.command import engine_command
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.engines.installed import installed_vllm
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port

REPEATS = 5


def rows() -> Iterator[Row]:
    """`up` compared with `vllm serve`; then a second start compared with the first."""
    with tempfile.TemporaryDirectory() as folder:
        yield _up(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield _second_start(Path(folder))


def _up(directory: Path) -> Row:
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=directory).succeeded()
    bare, up = [], []
    for _ in range(REPEATS):
        bare.append(_bare_start(Deployment(directory)))
        started = time.monotonic()
        dflash("up", at=directory).succeeded()
        up.append(time.monotonic() - started)
        dflash("down", at=directory).succeeded()
    return Row(
        "up with its checks, compared with vllm serve to its first answer",
        statistics.median(bare),
        statistics.median(up),
        "s",
        "1.05 or less",
        REPEATS,
    )


def _second_start(directory: Path) -> Row:
    """Seconds of `up` with an empty cache of compiled code, and with the cache that this start fills."""
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=directory).succeeded()
    edit_env(directory, ENFORCE_EAGER="off")
    caches = directory / "caches"
    environment = {"VLLM_CACHE_ROOT": str(caches / "vllm"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    first: list[float] = []
    second: list[float] = []
    for _ in range(REPEATS):
        shutil.rmtree(caches, ignore_errors=True)
        for times in (first, second):
            started = time.monotonic()
            dflash("up", at=directory, environment=environment).succeeded()
            times.append(time.monotonic() - started)
            dflash("down", at=directory).succeeded()
    what = "a start that compiles, with the cache filled compared with empty"
    return Row(what, statistics.median(first), statistics.median(second), "s", "less than 1", REPEATS)


def _bare_start(deployment: Deployment) -> float:
    """Seconds from starting the same engine by hand to its first answer."""
    started = time.monotonic()
    with engine_by_hand(deployment, engine_command(plan_of(deployment))[1:]):
        return time.monotonic() - started


@contextmanager
def engine_by_hand(deployment: Deployment, arguments: list[str]) -> Iterator[Endpoint]:
    """The engine with these arguments: yields after its first answer, and stops the engine at the end."""
    engine, plan = installed_vllm(), plan_of(deployment)
    if engine is None:
        raise SystemExit("vLLM is not installed")
    environment = engine.environment(os.environ) | {
        "VLLM_API_KEY": deployment.key.reveal(),
        "VLLM_CPU_KVCACHE_SPACE": deployment.values["VLLM_CPU_KVCACHE_SPACE"],
    }
    command = engine.command(arguments)
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        endpoint_of(deployment, plan) as endpoint,
    ):
        try:
            while not _answers(endpoint, plan.pair.text.ask):
                if process.poll() is not None:
                    raise SystemExit("vllm serve ended before its first answer")
                time.sleep(0.2)
            yield endpoint
        finally:
            process.terminate()


def _answers(endpoint: Endpoint, question: str) -> bool:
    try:
        return bool(endpoint.chat(question, max_tokens=16).text)
    except EndpointError:
        return False
