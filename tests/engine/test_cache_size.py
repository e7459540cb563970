"""The memory fit against the truth: what the real engine logs for the tiny pair, at three settings."""

import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL
from threading import Timer

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.plan import Choice, engine_environment
from dflash_deploy.rules import plan_deployment
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings
from tests.support.machines import LAPTOP
from tests.support.ports import free_port

LOGGED = re.compile(r"KV cache size: ([\d,]+) tokens")
PATIENCE = 240.0
"""Seconds until the engine has sized its cache."""


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


@pytest.mark.parametrize(
    "edited",
    [
        {},
        {Settings.max_model_len.name: "512", "DFLASH_NUM_SPEC_TOKENS": "3", "VLLM_CPU_KVCACHE_SPACE": "2"},
        {Settings.max_model_len.name: "4000", "DFLASH_DRAFTER": "off"},
    ],
    ids=["as planned", "short, few drafts, twice the cache", "long, plain"],
)
def test_the_predicted_cache_is_within_a_tenth_of_the_engines(edited: dict[str, str], tmp_path: Path) -> None:
    edited = {**edited, "DFLASH_PORT": str(free_port())}
    plan = plan_deployment(LAPTOP, Choice(profile="cpu", runtime="native", edited=edited), load_catalog())
    secrets = tmp_path / "secrets"
    secrets.write_text("VLLM_API_KEY=only-for-this-test-0123456789\n")
    environment = engine_environment(plan) | {SECRETS_FILE: str(secrets)}
    logged = tokens_logged(environment, tmp_path / "engine.log")
    assert plan.memory is not None
    assert plan.memory.tokens == pytest.approx(logged, rel=0.1)
