"""Headless Chromium, driven over the WebDriver protocol; Debian's packages, installed where root may."""

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import HANGS, apt_install, is_installed, wait_until
from tests.support.ports import free_port

DRIVER = "chromedriver"
CHROMIUM = "chromium"

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1")


class NoBrowser(RuntimeError):
    """Raised where no Chromium is installed and none can be."""


def ensure_browser() -> None:
    """Chromium and its driver, installed where they are missing and this user may. Raises NoBrowser."""
    if is_installed(DRIVER) and is_installed(CHROMIUM):
        return
    if os.geteuid() != 0:
        raise NoBrowser("chromium and chromedriver are not installed, and only root may install them")
    try:
        apt_install("chromium", "chromium-driver")
    except RuntimeError as problem:
        raise NoBrowser(str(problem)) from None


class Page:
    """One tab. `console` and `requests` tell what it logged and which addresses it asked for."""

    def __init__(self, session: httpx.Client) -> None:
        self._session = session

    def open(self, place: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Show a file or an address in a window of this size, for a reader who prefers light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._command("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._post("url", {"url": place.as_uri() if isinstance(place, Path) else place})

    def evaluate(self, script: str) -> Any:
        """What a function with this body returns in the page."""
        return self._post("execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """What was written to the console since the last look."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last look."""
        entries = [json.loads(entry["message"])["message"] for entry in self._post("se/log", {"type": "performance"})]
        return [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]

    def until(self, script: str) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        found: list[Any] = []

        def is_true() -> bool:
            found.append(self.evaluate(f"return {script}"))
            return bool(found[-1])

        assert wait_until(is_true, HANGS), script
        return found[-1]

    def write(self, text: str) -> None:
        """Write into the field that has the focus, and press Enter."""
        self._command("Input.insertText", {"text": text})
        for kind in ("keyDown", "keyUp"):
            key = {"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            self._command("Input.dispatchKeyEvent", key)

    def press(self, x: float, y: float) -> None:
        """Press the mouse at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self._command("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})

    @contextmanager
    def chosen_files(self, *files: Path) -> Iterator[None]:
        """Choose these files in the dialog that opens by the end of the block."""
        self._command("Page.setInterceptFileChooserDialog", {"enabled": True})
        self.traffic()
        yield
        opened: list[int] = []

        def has_opened() -> bool:
            entries = (json.loads(line)["message"] for line in self.traffic().splitlines())
            said = (one["params"] for one in entries if one["method"] == "Page.fileChooserOpened")
            opened.extend(one["backendNodeId"] for one in said)
            return bool(opened)

        assert wait_until(has_opened, HANGS), "no dialog opened"
        names = [str(file) for file in files]
        self._command("DOM.setFileInputFiles", {"files": names, "backendNodeId": opened[-1]})
        self._command("Page.setInterceptFileChooserDialog", {"enabled": False})

    def traffic(self) -> str:
        """All that was sent and received since the last look, messages of WebSockets included, as Chromium logs it."""
        return "\n".join(entry["message"] for entry in self._post("se/log", {"type": "performance"}))

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self._command("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(b64decode(shot["data"]))

    def _command(self, name: str, params: Mapping[str, object]) -> Any:
        return self._post("goog/cdp/execute", {"cmd": name, "params": params})

    def _post(self, path: str, body: Mapping[str, object]) -> Any:
        response = self._session.post(path, json=body)
        assert response.is_success, response.text
        return response.json()["value"]


@contextmanager
def browser() -> Iterator[Page]:
    """A tab of a fresh browser."""
    ensure_browser()
    port = free_port()
    with subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGS, trust_env=False) as client:
                if not wait_until(lambda: _listens(client), HANGS):
                    raise NoBrowser("chromedriver does not answer")
                yield from _tab(client)
        finally:
            driver.terminate()


def _tab(client: httpx.Client) -> Iterator[Page]:
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {"args": list(FLAGS)},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    made = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
    assert made.is_success, made.text
    session = made.json()["value"]["sessionId"]
    try:
        with httpx.Client(base_url=client.base_url.join(f"/session/{session}/"), timeout=HANGS, trust_env=False) as tab:
            yield Page(tab)
    finally:
        client.delete(f"/session/{session}")


def _listens(client: httpx.Client) -> bool:
    try:
        return bool(client.get("/status").json()["value"]["ready"])
    except httpx.HTTPError:
        return False


@contextmanager
def browser_or_skip(unseen: str) -> Iterator[Page]:
    """A browser. Without one the tests fail in CI, and elsewhere are reported as skipped: `unseen` was not opened."""
    try:
        with browser() as tab:
            yield tab
    except NoBrowser as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{unseen} was not opened: {problem}")
