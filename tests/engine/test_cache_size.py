"""The memory fit against the truth: what the real engine logs for the tiny pair."""

import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL
from threading import Timer

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import plan_of
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings
from tests.support.machines import LAPTOP
from tests.support.ports import free_port
from tests.support.server import Server

LOGGED = re.compile(r"KV cache size: ([\d,]+) tokens")
PATIENCE = 240.0  # seconds until the engine has sized its cache


def tokens_logged(environment: dict[str, str], log: Path) -> int:
    """Start the engine, read how many tokens its cache has, and end it: it need not become ready for that."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "DFLASH_"))}
    with (
        log.open("w") as written,
        subprocess.Popen(
            [sys.executable, "-m", "dflash_deploy.serve"],
            env=inherited | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as engine,
    ):
        assert engine.stdout is not None
        watchdog = Timer(PATIENCE, os.killpg, (engine.pid, SIGKILL))
        watchdog.start()
        try:
            for line in engine.stdout:
                written.write(line)
                found = LOGGED.search(line)
                if found:
                    return int(found[1].replace(",", ""))
        finally:
            watchdog.cancel()
            os.killpg(engine.pid, SIGKILL)
    raise AssertionError(f"the engine logged no cache size: {log.read_text()[-2000:]}")


def test_the_predicted_cache_of_the_profile_is_within_a_tenth_of_the_engines(drafting: Server) -> None:
    # the shared server has logged it when it started
    log = (drafting.directory / ".dflash/engine.log").read_text()
    sizes = [int(size.replace(",", "")) for size in LOGGED.findall(log)]
    plan = plan_of(Deployment.existing(drafting.directory))
    assert plan.memory is not None
    assert sizes
    assert sizes == [pytest.approx(plan.memory.cache_tokens, rel=0.1)] * len(sizes)


def test_the_predicted_cache_of_other_settings_is_within_a_tenth_of_the_engines(tmp_path: Path) -> None:
    """A short context, few drafts and twice the cache. What is logged without a drafter is in the unit tests."""
    edited = {Settings.max_model_len.name: "512", "DFLASH_NUM_SPEC_TOKENS": "3", "VLLM_CPU_KVCACHE_SPACE": "2"}
    edited |= {"DFLASH_PORT": str(free_port())}
    plan = plan_deployment(LAPTOP, Choice(profile="cpu", runtime="native", edited=edited), load_catalog())
    secrets = tmp_path / "secrets"
    secrets.write_text("VLLM_API_KEY=only-for-this-test-0123456789\n")
    environment = engine_environment(plan) | {SECRETS_FILE: str(secrets)}
    logged = tokens_logged(environment, tmp_path / "engine.log")
    assert plan.memory is not None
    assert plan.memory.cache_tokens == pytest.approx(logged, rel=0.1)
