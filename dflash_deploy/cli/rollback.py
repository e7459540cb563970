"""`rollback` and `restart`: back to the last good settings, and the same settings again."""

from __future__ import annotations

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import HERE, Directory, Json, JsonStream, Patience, Replica
from dflash_deploy.cli.shown import Report
from dflash_deploy.startup import PATIENCE


@command(changes=True, examples=("rollback", "rollback --json"))
def rollback(
    directory: Directory = HERE, patience: Patience = PATIENCE, as_json: Json = False, json_stream: JsonStream = False
) -> Report:
    """Restore the settings of the last good start, and start them. They are written back into .env."""
    from dflash_deploy.operations.up import roll_back

    done = roll_back(directory, patience=patience, reporter=terminal(json_stream=json_stream))
    endpoint = f"{done.ready.endpoint}/v1"
    count = len(done.changed)
    said = f"{count} settings are as they were; .env.last keeps the others" if count else "nothing to undo"
    data = {"changed": list(done.changed), "endpoint": endpoint, "state": "ready"}
    shown = (said, f"ready     {endpoint}", f"checked   {', '.join(done.passed)}")
    return Report(data, shown, failure=done.failure)


@command(changes=True, examples=("restart", "restart --dir /srv/vision"))
def restart(
    directory: Directory = HERE,
    replica: Replica = None,
    patience: Patience = PATIENCE,
    as_json: Json = False,
    json_stream: JsonStream = False,
) -> Report:
    """Stop the engine and start it with the settings of .env. It restarts even if they have not changed.

    Several engines restart one at a time, and the others keep answering.
    """
    from dflash_deploy.operations.up import restart as run_restart

    reporter = terminal(json_stream=json_stream)
    done = run_restart(directory, replica=replica, patience=patience, reporter=reporter)
    data = {"endpoint": done.endpoint, "state": "ready", "seconds": round(done.ready.seconds, 1)}
    shown = (f"ready     after {done.ready.seconds:.0f} s, {done.endpoint}", f"checked   {', '.join(done.passed)}")
    return Report(data, shown, failure=done.failure)
