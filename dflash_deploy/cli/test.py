"""`test`: prove that an endpoint is right, fast and closed: that of a deployment, or any other by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.completion import checks
from dflash_deploy.cli.options import HERE, Directory, Json, KeyFile, Replica
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations import Tested

Only = Annotated[
    str, typer.Option("--only", help="Checks to run, by name, with commas between.", autocompletion=checks)
]


@command
def test(
    directory: Directory = HERE,
    only: Only = "",
    replica: Replica = None,
    url: Annotated[
        str | None, typer.Option(help="Another endpoint, as http://host:port; no deployment is needed.")
    ] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            help="The pods of `export kubernetes` in this namespace, through kubectl, and whether they are the same.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The export's --name, if the namespace has several.")] = "",
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="The served name to ask at --url; else the first one.")] = "",
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Also compare answers with those without speculative decoding: the engine restarts for it, and back.",
        ),
    ] = False,
    baseline_url: Annotated[
        str | None,
        typer.Option(help="The same target without speculative decoding, same API key: are the answers the same?"),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the report as JUnit XML.", dir_okay=False)] = None,
    patience: Annotated[float, typer.Option(min=1, help="As for `up`, for the restarts of --baseline.")] = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Check answers, streaming, vision, the key, limits and drafts. --url and --kubernetes need no deployment."""
    names = {name for name in only.replace(",", " ").split() if name}
    cluster = kubernetes is not None
    if (key_file and url is None and not cluster) or (model and url is None):
        raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
    if name and not cluster:
        raise BadInput("--name belongs to --kubernetes", hint="add the namespace: --kubernetes NAMESPACE")
    if cluster and (url or baseline or baseline_url or replica):
        raise BadInput(
            "--kubernetes checks all pods of an export as they run",
            hint="leave out --url, --baseline, --baseline-url and --replica",
        )
    if baseline and url is not None:
        raise BadInput(
            "an endpoint without a deployment cannot be restarted",
            hint="name a second one without speculative decoding: --baseline-url",
        )
    if junit is not None:
        # before minutes of checks, not after
        operations.check_output(junit)
    reporter = terminal(results_on_stdout=not as_json)
    if kubernetes is not None:
        given = operations.key_in(key_file) if key_file else None
        done = operations.test_kubernetes(kubernetes, name=name, key=given, only=names, reporter=reporter)
    elif url is not None:
        key = operations.key_in(key_file)
        done = operations.test_url(url, key, model=model, only=names, baseline_url=baseline_url, reporter=reporter)
    else:
        done = operations.test(
            directory,
            replica=replica,
            only=names,
            baseline=baseline,
            baseline_url=baseline_url,
            patience=patience,
            reporter=reporter,
        )
    if junit is not None:
        done.write_junit(junit)
    return Report(done.document(), () if done.failure else _shown(done), failure=done.failure)


def _shown(done: Tested) -> tuple[str, ...]:
    ran, skipped = len(done.report.checks), len(done.report.skipped)
    rate, length, deployment = done.tokens_per_second, done.acceptance_length, done.deployment
    return (
        f"{ran - skipped} checks passed, {skipped} skipped" if skipped else f"all {ran} checks passed",
        "",
        f"endpoint   {done.endpoint}, model {done.model}",
        *([f"speed      {rate:.0f} tokens/s at concurrency 1"] if rate else []),
        *([f"drafts     acceptance length {length:.2f}"] if length else []),
        *([f"key        {Settings.vllm_api_key} in {deployment.env_file}"] if deployment else []),
        *([f"stop it    dflash-deploy down --dir {deployment.directory}"] if deployment else []),
    )
