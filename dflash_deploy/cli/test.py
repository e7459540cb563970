"""`test`: prove that an endpoint is right, fast and closed: that of a deployment, or any other by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import (
    KeyFile,
    Only,
    SameAnswers,
    SameAnswersUrl,
    Served,
    Url,
)
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.operations.test import Tested


Soak = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        max=10_080,
        metavar="MINUTES",
        help="Send conversations of agents for N minutes instead: errors, memory, stalls, latency.",
    ),
]
Restarts = Annotated[float, typer.Option(min=1, help="Restart timeout in seconds, as in `up --patience`.")]


@command(starts_over=True, examples=("test", "test --soak 10"))
def test(
    only: Only = "",
    url: Url = None,
    key_file: KeyFile = None,
    model: Served = "",
    baseline: SameAnswers = False,
    baseline_url: SameAnswersUrl = None,
    soak: Soak = None,
    patience: Restarts = PATIENCE,
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Check answers, streaming, vision, the key, limits and drafts. --url needs no deployment."""
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.test import test as run_test
    from dflash_deploy.operations.test import test_url

    if soak is not None and (only or url or baseline or baseline_url):
        raise BadInput("--soak is a test of its own, of a deployment", hint="use it with --dir and --json")
    _check_url(url, options=bool(model or key_file), baseline=baseline)
    names = {name for name in only.replace(",", " ").split() if name}
    reporter = terminal(results_on_stdout=not as_json)
    # a soak says something each minute
    with reporter.working("checking") if soak is None else reporter.working("checking", quiet=90):
        if soak is not None:
            from dflash_deploy.operations.soak import soak as run_soak

            done = run_soak(directory, soak, reporter=reporter)
        elif url is not None:
            key = key_in(key_file)
            done = test_url(url, key, model=model, only=names, baseline_url=baseline_url, reporter=reporter)
        else:
            done = run_test(
                directory,
                only=names,
                baseline=baseline,
                baseline_url=baseline_url,
                patience=patience,
                reporter=reporter,
            )
    return Report(done, () if done.failure else tested_lines(done), failure=done.failure)


def _check_url(url: str | None, *, options: bool, baseline: bool) -> None:
    """Refuse options that belong to --url without it, and a restart of an endpoint by its URL."""
    if url is None and options:
        raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
    if url is not None and baseline:
        raise BadInput(
            "an endpoint without a deployment cannot be restarted",
            hint="name a second one without speculative decoding: --baseline-url",
        )


def tested_lines(done: Tested) -> tuple[str, ...]:
    """The lines of a test that passed."""
    ran, skipped = len(done.report.checks), len(done.report.skipped)
    whole = f"all {ran} checks passed" if ran > 1 else "1 check passed"
    rate, length, deployment = done.tokens_per_second, done.acceptance_length, done.deployment
    return (
        f"{ran - skipped} checks passed, {skipped} skipped" if skipped else whole,
        "",
        f"endpoint   {done.endpoint}, model {done.model}",
        *([f"speed      {rate:.0f} tokens/s at concurrency 1"] if rate else []),
        *([f"drafts     acceptance length {length:.2f}"] if length else []),
        *([f"key        {Settings.vllm_api_key} in {deployment.env_file}"] if deployment else []),
        *([f"stop it    dflash-deploy down --dir {deployment.directory}"] if deployment else []),
    )
