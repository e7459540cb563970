"""What `status --watch` shows: a live view on a terminal, a line for each window in a pipe."""

from __future__ import annotations

from datetime import datetime

from dflash_deploy.cli.display import View
from dflash_deploy.cli.report import console
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.operations.status import Watched
from dflash_deploy.startup.watch import Window

HEADER = f"{'time':8}  {'state':15}  {'running':>7}  {'waiting':>7}  {'tokens/s':>8}  {'length':>6}  {'cache':>5}"


def show_windows(watched: Watched, every: float, count: int | None) -> None:
    """Show a window every `every` seconds, until Ctrl-C or `count` times."""
    screen, endpoint = console(), watched.endpoint
    if screen.is_terminal and not screen.is_dumb_terminal:
        with View(f"{endpoint.model} at {endpoint.url}/v1", screen, watched.redact) as view:
            for window in watched.windows(every, count):
                view.show(window)
        return
    screen.print(HEADER, markup=False)
    for window in watched.windows(every, count):
        screen.print(watched.redact(_line(window)), markup=False, highlight=False)
        if lost_output() is not None:
            return


def _line(window: Window) -> str:
    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        f"{datetime.now():%H:%M:%S}  {window.state:15}  {figure(window.running, 'd'):>7}  "
        f"{figure(window.waiting, 'd'):>7}  {figure(window.tokens_per_second, '.1f'):>8}  "
        f"{figure(window.acceptance_length, '.2f'):>6}  {figure(window.cache, '.0%'):>5}  {window.remark}"
    ).rstrip()
