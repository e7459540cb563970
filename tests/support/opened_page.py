"""The page of `open` as a process, and a person who uses it in Chromium."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from dflash_deploy.errors import ExitCode
from tests.support.browser import Page


@dataclass(frozen=True)
class Opened:
    """A page that runs: its address with the token, its origin, and all that it printed."""

    address: str
    origin: str
    printed: str

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    def enter(self) -> str:
        """The cookie, for the token."""
        cookie: str = httpx.get(self.address, trust_env=False).headers["set-cookie"]
        return cookie.partition(";")[0]


@contextmanager
def opened(*options: str, at: Path) -> Iterator[Opened]:
    """`open`, until the block ends; Ctrl-C ends it with code 0."""
    command = [sys.executable, "-u", "-m", "dflash_deploy", "open", "--no-browser", *options]
    environment = {**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with subprocess.Popen(command, cwd=at, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in range(4))
            (address,) = re.findall(r"http://\S+", printed)
            httpx.get(address.partition("?")[0], timeout=60, trust_env=False)
            yield Opened(address, address.partition("/?")[0], printed)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait() == ExitCode.DONE


def click(tab: Page, name: str, *, as_a_person: bool = False) -> None:
    """Press a button; `as_a_person`: with the mouse, without which a browser opens no choice of files."""
    button = f"""document.querySelector('[aria-label="{name}"]')"""
    tab.until(f"{button}?.offsetParent")
    if as_a_person:
        place = tab.evaluate(f"return {button}.getBoundingClientRect()")
        tab.press(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    else:
        tab.evaluate(f"{button}.click()")


def ask(tab: Page, question: str) -> None:
    tab.evaluate("document.querySelector('textarea').focus()")
    tab.write(question)


def ended(tab: Page) -> str:
    """The last answer, when it is whole or has failed."""
    tab.until("""document.querySelector('[aria-label="Send"]').offsetParent
        && /first after|stopped|hint|--/.test([...document.querySelectorAll('[role=status]')].at(-1)?.innerText)""")
    text: str = tab.evaluate("return [...document.querySelectorAll('.answer')].at(-1).innerText.trim()")
    return text


def bring(tab: Page, event: str, name: str, content: bytes) -> None:
    """Drop or paste a file."""
    kind, carries = ("DragEvent", "dataTransfer") if event == "drop" else ("ClipboardEvent", "clipboardData")
    tab.evaluate(f"""
        const bytes = Uint8Array.from(atob("{b64encode(content).decode()}"), one => one.charCodeAt(0));
        const files = new DataTransfer();
        files.items.add(new File([bytes], "{name}", {{type: "image/png"}}));
        document.dispatchEvent(new {kind}("{event}", {{{carries}: files, bubbles: true, cancelable: true}}));
    """)
