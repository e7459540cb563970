"""Waiting for a certificate: the log of the door is read once, a part at a time."""

from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.runtime import domain
from dflash_deploy.runtime.domain import awaited_certificate
from dflash_deploy.runtime.protocol import LogPage
from dflash_deploy.serve.settings import Settings

REFUSED = '{"level":"error","logger":"tls.obtain","error":"the authority says no"}'
OBTAINED = '{"level":"info","logger":"tls.obtain","msg":"certificate obtained successfully"}'
SETTINGS = Settings({"DFLASH_DOMAIN": "api.example.com"})


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        (["a line", "another", "", REFUSED], "no certificate from the authority: the authority says no"),
        # its second try succeeds, and the door shakes hands a moment later
        (["a line", f"{REFUSED}\n{OBTAINED}", ""], ""),
    ],
)
def test_each_line_of_the_door_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: list[str], problem: str
) -> None:
    asked: list[str] = []

    def read(cursor: str) -> LogPage:
        asked.append(cursor)
        return LogPage(tuple(pages[len(asked) - 1].splitlines()), f"{cursor}.")

    def shaken(*_: object) -> str:
        return "" if len(asked) == len(pages) else "no certificate yet"

    monkeypatch.setattr(domain, "shaken", shaken)
    monkeypatch.setattr(domain, "PAUSE", 0.0)
    deployment = Deployment(tmp_path)
    assert awaited_certificate(deployment, SETTINGS, str, read, 60, cursor="begun") == problem
    assert asked == ["begun" + "." * number for number in range(len(pages))]
