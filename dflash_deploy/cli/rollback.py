"""`rollback` and `restart`: back to the settings that answered last, and the same ones anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.cli.planned import Patience, plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, JsonStream, Report, note, verb
from dflash_deploy.cli.starting import Start, Started

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment


@verb
def rollback(
    directory: Directory = HERE, patience: Patience = 900, as_json: Json = False, json_stream: JsonStream = False
) -> Report:
    """Write the settings of the last good start back into .env, and start them."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.deployment.last_good import changes, last_good
    from dflash_deploy.errors import NotPossible

    with hold(Deployment.existing(directory, check=False), "rollback"):
        deployment = Deployment.existing(directory, check=False)
        if last_good(deployment) is None:
            raise NotPossible(
                "no start of this deployment has ended with an answer yet", hint="`dflash-deploy up` starts it"
            )
        rows = changes(deployment)
        if rows:
            deployment.with_values({row.name: row.good for row in rows})
        for row in rows:
            note(f"{row.name}: {row.now or '(empty)'} -> {row.good or '(empty)'}")
        started = _started(Deployment.existing(directory), Start(patience, json_stream), anew=False)
    ready = started.ready
    said = f"{len(rows)} settings are as they were; .env.last keeps the others" if rows else "nothing to undo"
    data = {"changed": [row.name for row in rows], "endpoint": f"{ready.endpoint}/v1", "state": "ready"}
    return Report(data, (said, f"ready     {ready.endpoint}/v1", f"checked   {started.said}"), failure=started.failure)


@verb
def restart(
    directory: Directory = HERE, patience: Patience = 900, as_json: Json = False, json_stream: JsonStream = False
) -> Report:
    """Stop the engine and start it with the settings of .env, whether they changed or not."""
    from dflash_deploy.deployment import Deployment, hold

    deployment = Deployment.existing(directory)
    with hold(deployment, "restart"):
        note("answers under way get up to 45 s to end")
        started = _started(deployment, Start(patience, json_stream), anew=True)
    ready = started.ready
    data = {"endpoint": f"{ready.endpoint}/v1", "state": "ready", "seconds": round(ready.seconds, 1)}
    shown = (f"ready     after {ready.seconds:.0f} s, {ready.endpoint}/v1", f"checked   {started.said}")
    return Report(data, shown, failure=started.failure)


def _started(deployment: Deployment, start: Start, *, anew: bool) -> Started:
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.startup import preflight

    plan = plan_of(deployment)
    if anew:
        runtime = runtime_for(deployment, plan)
        # what would keep it from starting is found while it still runs
        preflight(deployment, plan, runtime)
        runtime.halt()
    return start.or_go_back(deployment, plan)
