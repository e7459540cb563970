"""`pull`: bring target and drafter, at the commits that dflash.lock states."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.project import Deployment
    from dflash_deploy.weights.hub import Source
    from dflash_deploy.weights.lockfile import Lock
    from dflash_deploy.weights.pull import Order

LOCK = "dflash.lock"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_RATE = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[kmgKMG]?)(?:[bB](?:/s)?)?")


@verb
def pull(
    directory: Directory = HERE,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network; say what is missing.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again, against the lock.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Say whether the hub has moved; change nothing.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Move to what the hub has now.")] = False,
    max_bandwidth: Annotated[str, typer.Option(help="Bytes a second at the most, such as 20M.")] = "",
    as_json: Json = False,
) -> Report:
    """Bring target and drafter: resumed where they broke off, verified, at commits that dflash.lock keeps."""
    from dflash_deploy.project import Deployment, hold
    from dflash_deploy.weights.hub import Source
    from dflash_deploy.weights.lockfile import read_lock
    from dflash_deploy.weights.pull import orders

    rate = _rate(max_bandwidth)
    deployment = Deployment.existing(directory)
    wanted = orders(deployment, plan_of(deployment))
    lock = read_lock(deployment.directory / LOCK)
    if not wanted:
        return Report({"models": []}, ("both models come with dflash-deploy; nothing is to be fetched",))
    if offline or verify:
        return _local(wanted, lock, thorough=verify)
    source = Source.of(deployment.secrets["HF_TOKEN"], deployment.values.get("HF_ENDPOINT"))
    if check:
        return _check(wanted, lock, source)
    with hold(deployment, "pull"):
        return _fetch(deployment, wanted, lock, source, update=update, rate=rate)


def _fetch(
    deployment: Deployment, wanted: tuple[Order, ...], before: Lock | None, source: Source, *, update: bool, rate: float
) -> Report:
    from dflash_deploy.cli.transfers import transfer_display
    from dflash_deploy.weights.fetch import Wish, fetch
    from dflash_deploy.weights.lockfile import write_lock
    from dflash_deploy.weights.pull import lock_for

    lock = lock_for(wanted, before, source, update=update)
    write_lock(deployment.directory / LOCK, lock)
    rows, shown = [], []
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
            parts = f"{done.there} there, {done.reused} from the hub client's cache, {done.fetched} fetched"
            shown.append(f"{order.role:8} {model.repo}@{model.commit[:10]}, {model.size / 1e9:.2f} GB: {parts}")
            shown.append(f"{'':8} {order.directory}")
    return Report({"models": rows}, (*shown, f"locked   {deployment.directory / LOCK}", "next     dflash-deploy up"))


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
