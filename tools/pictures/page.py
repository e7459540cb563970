"""Pictures of the page of `open`: a deployment of the tiny pair, measured, and asked in Chromium.

python -m tools.pictures.page
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.browser import Page, browser
from tests.support.cli import dflash
from tests.support.llamacpp_native import init
from tests.support.opened_page import Opened, ask, bring, click, ended, opened
from tools.pictures.album import FOLDER

PICTURE = "green.png"  # what the model is asked about


def main() -> None:
    """Write `page.png`, a desk in light, and `page-phone.png`, a phone in dark with the steps shaded."""
    with TemporaryDirectory() as place:
        directory = Path(place)
        init(directory)
        dflash("up", at=directory).succeeded()
        try:
            told = ("--baseline", "--concurrency", "1,2", "--workload", "own")
            dflash("bench", *told, at=directory).succeeded()
            with browser() as tab, opened(at=directory) as page:
                _take(tab, page)
        finally:
            dflash("down", at=directory).succeeded()


def _take(tab: Page, page: Opened) -> None:
    tab.open(page.address)
    tab.until("document.querySelector('textarea')")
    bring(tab, "drop", PICTURE, (FOLDER / PICTURE).read_bytes())
    tab.until("document.querySelector('footer img')")
    ask(tab, "What colour is this image?")
    ended(tab)
    tab.open(page.origin, width=1280, height=820)
    tab.until("document.querySelector('.q-drawer').innerText.includes('ready')")
    ended(tab)
    tab.screenshot(FOLDER / "page.png")
    click(tab, "New conversation")
    ask(tab, "Count from 1 to 40.")
    ended(tab)
    tab.open(page.origin, width=390, height=760, dark=True)
    ended(tab)
    tab.evaluate("document.querySelector('.q-toggle').click()")
    tab.until("document.querySelector('.steps')")
    tab.screenshot(FOLDER / "page-phone.png")


if __name__ == "__main__":
    main()
