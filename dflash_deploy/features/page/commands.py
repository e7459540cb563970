"""`open`: the page, its address with a token that works once, and how to reach it from another machine."""

from __future__ import annotations

import os
import webbrowser
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import LARGEST_PORT, KeyFile
from dflash_deploy.cli.shown import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash_deploy.features.page.server import Listening

FIRST_PORT = 1024  # lower ports are for root, and browsers leave out some of them when they name a host


@command(examples=("open", "open --url http://box:8000 --key-file key"), json=False)
def open(  # noqa: A001 - the command is called open
    url: Annotated[str | None, typer.Option(help="Talk to any endpoint by its URL, not to a deployment.")] = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="Name of the model at --url (default: the first one).")] = "",
    port: Annotated[
        int | None,
        typer.Option(min=FIRST_PORT, max=LARGEST_PORT, help="Port of the page on 127.0.0.1 (default: a free one)."),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")] = False,
    *,
    directory: Path,
) -> Report:
    """Talk to the model on a page of this machine. Runs until Ctrl-C. Needs the extra `web`."""
    from dflash_deploy.features.page.facts import PageSource
    from dflash_deploy.features.page.server import check_installed, listening

    check_installed()
    place = PageSource(directory, url, key_file, model)
    # Ctrl-C is how the page ends
    with listening(place, port) as page, suppress(KeyboardInterrupt):
        for line in _lines(page):
            typer.echo(line)
        if not no_browser and _has_screen():
            webbrowser.open_new_tab(page.address)
        page.run()
    return Report()


def _lines(page: Listening) -> Iterator[str]:
    yield f"page      {page.address}"
    yield "          this address works once, for one browser; Ctrl-C ends the page"
    if not _has_screen():
        yield f"forward   ssh -L {page.port}:127.0.0.1:{page.port} {gethostname()}"
        yield "          run it on the machine with the browser, and open the address there"


def _has_screen() -> bool:
    """Whether a browser that opens here is in front of the person who types here."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and "SSH_CONNECTION" not in os.environ
