"""`pull`: bring target and drafter, at the commits that dflash.lock states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import make_plan, plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.weights.checkpoints import HubMetadata
    from dflash_deploy.weights.hub import Source
    from dflash_deploy.weights.lockfile import Lock
    from dflash_deploy.weights.pull import Order

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_RATE = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[kmgKMG]?)(?:[bB](?:/s)?)?")


@verb
def pull(
    directory: Directory = HERE,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network; say what is missing.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again, against the lock.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Say whether the hub has moved; change nothing.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Move to what the hub has now.")] = False,
    to: Annotated[Path | None, typer.Option("--to", help="Copy weights and lock there, for a machine offline.")] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Take them over from there.")] = None,
    max_bandwidth: Annotated[str, typer.Option(help="Bytes a second at the most, such as 20M.")] = "",
    as_json: Json = False,
) -> Report:
    """Bring target and drafter: resumed where they broke off, verified, at commits that dflash.lock keeps."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.weights.hub import Source
    from dflash_deploy.weights.lockfile import LOCK_FILE, read_lock
    from dflash_deploy.weights.pull import orders

    rate = _rate(max_bandwidth)
    deployment = Deployment.existing(directory)
    wanted = orders(deployment, plan_of(deployment))
    lock = read_lock(deployment.directory / LOCK_FILE)
    if not wanted:
        return Report({"models": []}, ("both models come with dflash-deploy; nothing is to be fetched",))
    if to is not None or from_ is not None:
        with hold(deployment, "pull"):
            return _carry(deployment, wanted, lock, to, from_)
    if offline or verify:
        return _local(wanted, lock, thorough=verify)
    source = Source.of(deployment.secrets["HF_TOKEN"], deployment.values.get("HF_ENDPOINT"))
    if check:
        return _check(wanted, lock, source)
    with hold(deployment, "pull"):
        rows = bring(deployment, update=update, rate=rate)
    return Report({"models": rows}, _shown(deployment, rows))


def bring(deployment: Deployment, *, update: bool = False, rate: float = 0.0) -> list[dict[str, object]]:
    """Fetch what a deployment lacks and write dflash.lock; a row for each model.

    What target and drafter say of themselves comes first: weights that cannot go together are not fetched. Raises
    PreflightRefused for that, and DownloadFailed.
    """
    from dflash_deploy.cli.transfers import transfer_display
    from dflash_deploy.weights.ahead import read_hub_metadata
    from dflash_deploy.weights.fetch import Wish, fetch
    from dflash_deploy.weights.hub import Source
    from dflash_deploy.weights.lockfile import LOCK_FILE, read_lock, write_lock
    from dflash_deploy.weights.pull import lock_for, orders

    wanted = orders(deployment, plan_of(deployment))
    source = Source.of(deployment.secrets["HF_TOKEN"], deployment.values.get("HF_ENDPOINT"))
    lock = lock_for(wanted, read_lock(deployment.directory / LOCK_FILE), source, update=update)
    _refuse_mismatch(deployment, read_hub_metadata(source, wanted, lock))
    write_lock(deployment.directory / LOCK_FILE, lock)
    rows: list[dict[str, object]] = []
    with transfer_display(sum(model.size for model in lock.models.values())) as count:
        for order in wanted:
            model = lock.models[order.role]
            done = fetch(source, model, order.directory, Wish(rate, count))
            rows.append(
                {
                    "role": order.role,
                    "repo": model.repo,
                    "commit": model.commit,
                    "directory": str(order.directory),
                    "bytes": model.size,
                    "there": done.there,
                    "reused": done.reused,
                    "fetched": done.fetched,
                }
            )
    return rows


def _refuse_mismatch(deployment: Deployment, ahead: HubMetadata) -> None:
    """Check the rules that read target and drafter, now that their config.json or GGUF header is known."""
    from dflash_deploy.errors import PreflightRefused
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan import Choice
    from dflash_deploy.rules import CHECKPOINT_RULES, judge

    facts = read_facts()
    plan = make_plan(Choice(edited=deployment.values), deployment, facts, ahead)
    for finding in judge(plan, facts, CHECKPOINT_RULES):
        if finding.severity == "error":
            raise PreflightRefused(finding.message, hint=finding.fix)


def _shown(deployment: Deployment, rows: list[dict[str, object]]) -> tuple[str, ...]:
    from dflash_deploy.weights.lockfile import LOCK_FILE

    lines = []
    for row in rows:
        parts = f"{row['there']} there, {row['reused']} from the hub client's cache, {row['fetched']} fetched"
        size = int(str(row["bytes"])) / 1e9
        lines.append(f"{row['role']:8} {row['repo']}@{str(row['commit'])[:10]}, {size:.2f} GB: {parts}")
        lines.append(f"{'':8} {row['directory']}")
    return (*lines, f"locked   {deployment.directory / LOCK_FILE}", "next     dflash-deploy up")


def _carry(
    deployment: Deployment, wanted: tuple[Order, ...], lock: Lock | None, to: Path | None, from_: Path | None
) -> Report:
    from dflash_deploy.cli.transfers import transfer_display
    from dflash_deploy.errors import BadInput
    from dflash_deploy.weights.carry import carry_from, carry_to
    from dflash_deploy.weights.lockfile import LOCK_FILE, write_lock

    if to is not None and from_ is not None:
        raise BadInput("--to and --from together", hint="fill a directory with --to here, empty it with --from there")
    total = sum(model.size for model in lock.models.values()) if lock else 0
    with transfer_display(total) as count:
        if to is not None:
            carry_to(wanted, lock, to, count)
            return Report(
                {"to": str(to)}, (f"carried  weights and lock to {to}", f"there    dflash-deploy pull --from {to}")
            )
        assert from_ is not None  # noqa: S101 - one of the two is given
        taken = carry_from(wanted, from_, count)
    write_lock(deployment.directory / LOCK_FILE, taken)
    return Report({"from": str(from_)}, (f"taken    weights and lock from {from_}", "next     dflash-deploy up"))


def _local(wanted: tuple[Order, ...], lock: Lock | None, *, thorough: bool) -> Report:
    """What is on this machine, held against the lock."""
    from dflash_deploy.errors import FilesMissing
    from dflash_deploy.weights.pull import require_all, wrong_files

    if thorough and lock is not None:
        wrong = wrong_files(wanted, lock)
        if wrong:
            shown = tuple(f"wrong    {path} {problem}" for path, problem in wrong.items())
            failure = FilesMissing(
                f"{len(wrong)} files are not what dflash.lock says", hint="`dflash-deploy pull` brings them anew"
            )
            return Report({"wrong": wrong}, shown, failure=failure)
    require_all(wanted, lock)
    return Report({"wrong": {}}, ("every file is there, as dflash.lock says",))


def _check(wanted: tuple[Order, ...], lock: Lock | None, source: Source) -> Report:
    from dflash_deploy.errors import FilesMissing
    from dflash_deploy.weights.pull import moved

    if lock is None:
        raise FilesMissing("there is no dflash.lock yet", hint="run `dflash-deploy pull` first")
    found = moved(wanted, lock, source)
    shown = [f"moved    {repo}: {', '.join(paths) or 'other files alone'}" for repo, paths in found.items()]
    said = "`dflash-deploy pull --update` moves there; dflash.lock.last keeps what you have" if found else ""
    return Report({"moved": found}, (*shown, said) if found else ("the hub has what dflash.lock says",))


def _rate(text: str) -> float:
    from dflash_deploy.errors import BadInput

    if not text:
        return 0.0
    found = _RATE.fullmatch(text.strip())
    if found is None or not float(found["count"]):
        raise BadInput(f"--max-bandwidth {text} is no rate", hint="write bytes a second, such as 20M or 500k")
    return float(found["count"]) * _UNITS[found["unit"].lower()]
