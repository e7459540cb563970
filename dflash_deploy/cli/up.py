"""`up`: start the deployment and wait for its first answer."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, verb


@verb
def up(
    directory: Directory = HERE,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds without a sign of progress after which the engine is given up.")
    ] = 900,
    as_json: Json = False,
) -> Report:
    """Start the engine, follow it while it loads, and end with a real answer."""
    from dflash_deploy.boot import bring_up, preflight
    from dflash_deploy.cli.display import boot_display
    from dflash_deploy.cli.pull import bring
    from dflash_deploy.errors import WeightsMissing
    from dflash_deploy.project import Deployment, hold
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.weights.pull import orders

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    runtime = runtime_for(deployment, plan)
    with hold(deployment, "up"):
        try:
            preflight(deployment, plan, runtime)
        except WeightsMissing:
            if not orders(deployment, plan):
                raise
            note("weights are missing: fetching them, as `dflash-deploy pull` does")
            bring(deployment)
            # what the weights say of themselves may change the plan
            plan = plan_of(deployment)
            runtime = runtime_for(deployment, plan)
        with boot_display(deployment.redact) as show:
            ready = bring_up(deployment, plan, runtime, patience=patience, show=show)
    data = {
        "endpoint": f"{ready.endpoint}/v1",
        "model": ready.model,
        "runtime": ready.runtime,
        "state": "ready",
        "changed": ready.changed,
        "seconds": round(ready.seconds, 1),
    }
    said = f"ready after {ready.seconds:.0f} s" if ready.changed else "was ready already; nothing changed"
    shown = (
        said,
        f"endpoint  {ready.endpoint}/v1",
        f"model     {ready.model}",
        f"key       VLLM_API_KEY in {deployment.env_file}",
        f"asked     {plan.pair.text.ask}",
        f"answered  {ready.first_answer.text.strip()}",
        "next      dflash-deploy test     prove it: text, stream, vision, key, drafts",
        "          dflash-deploy status   what is true now",
        "          dflash-deploy down     stop it; weights and settings stay",
    )
    return Report(data, shown, tuple(finding for finding in plan.findings if finding.severity != "note"))
