"""`pull`: fetch target and drafter, at the commits that dflash.lock records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import size_of
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import FilesMissing

if TYPE_CHECKING:
    from dflash_deploy.operations.pull import Moved, Pulled, Wrong

_NOTHING = Report({"models": []}, ("both models come with dflash-deploy: nothing to fetch",))


@command(changes=True, examples=("pull", "pull --offline --verify"))
def pull(
    offline: Annotated[
        bool, typer.Option("--offline", help="Check without the network, and report what is missing.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again, compare with the lock.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check for newer commits on the Hub; change nothing.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Move to the newest commits on the Hub.")] = False,
    *,
    directory: Path,
) -> Report:
    """Fetch target and drafter, verified, at the commits of dflash.lock. Interrupted downloads resume."""
    from dflash_deploy.operations.pull import check_files, check_hub
    from dflash_deploy.operations.pull import pull as run_pull

    if offline or verify:
        wrong = check_files(directory, thorough=verify)
        return _NOTHING if wrong is None else _checked(wrong)
    if check:
        moved = check_hub(directory)
        return _NOTHING if moved is None else _moved(moved)
    done = run_pull(directory, update=update, reporter=terminal())
    return Report(done, _shown(done)) if done.models else _NOTHING


def _shown(done: Pulled) -> tuple[str, ...]:
    lines = []
    for model in done.models:
        parts = f"{model.there} present, {model.reused} from the Hub client's cache, {model.fetched} fetched"
        lines.append(f"{model.role:8} {model.repo}@{model.commit[:10]}, {size_of(model.bytes)}: {parts}")
        lines.append(f"{'':8} {model.directory}")
    return (*lines, f"locked   {done.lock_file}", "next     dflash-deploy up")


def _moved(found: Moved) -> Report:
    shown = [f"moved    {repo}: {', '.join(paths) or 'only other files'}" for repo, paths in found.moved.items()]
    hint = "`dflash-deploy pull --update` moves to it; dflash.lock.last keeps the present commits"
    return Report(found, (*shown, hint) if found.moved else ("dflash.lock has the newest commits",))


def _checked(found: Wrong) -> Report:
    wrong = found.wrong
    if not wrong:
        return Report(found, ("all files are present and match dflash.lock",))
    count = "1 file differs" if len(wrong) == 1 else f"{len(wrong)} files differ"
    failure = FilesMissing(f"{count} from dflash.lock", hint="`dflash-deploy pull` fetches what differs")
    return Report(found, tuple(f"wrong    {path} {why}" for path, why in wrong.items()), failure=failure)
