"""Other people's clients with exactly what `connect` prints: which kinds of requests they send, and the answers.

The rows are in clients.yaml. Each client has an environment of its own in .cache/clients. Without --record, the release
in docs/reference/clients.yaml is installed, and what it does is compared with that table; with it, the newest one is
installed, and its row is written.
"""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from base64 import b64encode
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.client.images import plain_png
from dflash_deploy.connect import KEY_VARIABLE
from dflash_deploy.serve.engines import ENGINES
from tests.clients.recorder import Sent, recording
from tests.support.clients import CACHE
from tests.support.commands import apt_install, checked, is_installed
from tests.support.server import Server
from tools.reference.clients import RUNS, ClientRun, runs

ROWS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("clients.yaml").read_text(encoding="utf-8"))

PATIENCE = 900  # seconds for all requests of a client: an agent reads 45,000 tokens on one core

# What each row may call: `connect NAME OPTIONS`, and `value NAME`, a line of `connect any`.
CONNECT = """\
connect() { name="$1"; shift; dflash-deploy connect "$name" --dir "$BOX" --url "$URL" "$@"; }
value() { connect any 2>/dev/null | sed -n "s/^$1  *//p"; }
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The clients that the table has on the engine, or all of them to record; CI runs the light ones."""
    kind = ENGINES[metafunc.config.getoption("engine", "llamacpp")]
    records = metafunc.config.getoption("record", default=False)
    marks = {True: (pytest.mark.light,), False: ()}
    names = [name for name in ROWS if records or of_table(name, kind.title)]
    metafunc.parametrize("name", [pytest.param(name, marks=marks["light" in ROWS[name]]) for name in names])


def installed(name: str, release: str) -> tuple[Path, str]:
    """The folder of a client's commands, and its release: that one, or the newest one if it is empty."""
    row, folder = ROWS[name], CACHE / name
    if "npm" in row:
        return _of_npm(row["npm"], folder, release)
    if "pip" in row:
        return _of_pip(row["pip"], row.get("needs", ()), folder, release)
    found = re.search(r"\d+(\.\d+)+", checked(row["system"], "--version"))
    assert found is not None
    return Path("/usr/bin"), found[0]


def _of_npm(package: str, folder: Path, release: str) -> tuple[Path, str]:
    manifest = folder / "node_modules" / package / "package.json"
    if not (release and manifest.is_file() and json.loads(manifest.read_text())["version"] == release):
        if not is_installed("npm"):
            apt_install("nodejs", "npm")
        quiet = ("--no-audit", "--no-fund", "--silent")
        checked("npm", "install", "--prefix", str(folder), *quiet, f"{package}@{release or 'latest'}", timeout=1800)
    return folder / "node_modules" / ".bin", json.loads(manifest.read_text())["version"]


def _of_pip(package: str, needs: Sequence[str], folder: Path, release: str) -> tuple[Path, str]:
    name = package.partition("[")[0]
    if release == "" or _release(folder, name) != release:
        if not (folder / "bin" / "pip").exists():
            venv.create(folder, with_pip=True)
        pip = (str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--upgrade")
        wanted = f"{package}=={release}" if release else package
        checked(*pip, "--prefer-binary", wanted, *needs, timeout=1800)
    return folder / "bin", _release(folder, name)


def _release(folder: Path, name: str) -> str:
    """The release of a package in an environment; empty if it is not there."""
    places = [str(one) for one in folder.glob("lib/python*/site-packages")]
    return next((one.version for one in distributions(name=name, path=places)), "") if places else ""


def asked(name: str, commands: Path, endpoint: Server, url: str, home: Path) -> None:
    """Let a client ask: its row runs in a home directory of its own. It must end well."""
    tool = home / "bin" / "dflash-deploy"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nPYTHONPATH="$TOOLKIT" exec {sys.executable} -m dflash_deploy "$@"\n')
    tool.chmod(0o755)
    picture = plain_png((220, 20, 20), 64, 64)
    (home / "red.png").write_bytes(picture)
    variables = {
        "HOME": str(home),
        "TOOLKIT": os.pathsep.join(filter(None, sys.path)),
        "PATH": os.pathsep.join([str(commands), str(tool.parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "NODE_MODULES": str(commands.parent),
        KEY_VARIABLE: endpoint.key,
        "BOX": str(endpoint.directory),
        "URL": url,
        "PICTURE": str(home / "red.png"),
        "PICTURE_BASE64": b64encode(picture).decode(),
        "QUESTION": "What is the capital of France?",
        "COLOUR": "What colour is this image?",
    }
    kept = {one: os.environ[one] for one in os.environ if one.lower().endswith(("_proxy", "_cert", "_cert_file"))}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", CONNECT + ROWS[name]["asks"]],
        cwd=home,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def seen(name: str, version: str, engine: str, sent: Sequence[Sent]) -> ClientRun:
    """The row of a run in the table."""
    row = ROWS[name]
    tools = max((one.tools for one in sent), default=0)
    notes = [f"{tools} tools" if tools > 1 else "", row.get("note", "")]
    return ClientRun(
        client=name,
        version=version,
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        engine=engine,
        text=any(not one.image for one in sent),
        stream=any(one.stream for one in sent),
        image=any(one.image for one in sent),
        tools=tools > 0,
        in_ci="light" in row or "elsewhere" in row,
        note="; ".join(filter(None, notes)),
    )


def of_table(name: str, engine: str) -> list[ClientRun]:
    """The row of a client on an engine, of any of its releases."""
    return [one for one in runs() if (one.client, one.engine.rpartition(" ")[0]) == (name, engine)]


def record(run: ClientRun) -> None:
    """Write a row of the table, in the order of clients.yaml and of the engines."""
    head = "".join(line for line in RUNS.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#"))
    order = list(ROWS)
    kept = [one for one in runs() if one not in of_table(run.client, run.engine.rpartition(" ")[0])]
    table = sorted([*kept, run], key=lambda one: (one.engine, order.index(one.client)))
    lines = (yaml.safe_dump([one.model_dump()], sort_keys=False, default_flow_style=None, width=4096) for one in table)
    RUNS.write_text(head + "".join(lines), encoding="utf-8")


def test_a_client_sends_what_the_table_says(
    name: str, endpoint: Server, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    records = request.config.getoption("record", default=False)
    table = of_table(name, engine.rpartition(" ")[0])
    commands, version = installed(name, "" if records or "system" in ROWS[name] else table[0].version)
    with endpoint.connect() as connected, recording(connected.url) as (url, sent):
        asked(name, commands, endpoint, url, tmp_path)
    print(*sent, sep="\n")
    assert [one for one in sent if one.status != 200] == []
    run = seen(name, version, engine, sent)
    if records:
        record(run)
    else:
        cells = {"text", "stream", "image", "tools", "in_ci"}
        assert run.model_dump(include=cells) == table[0].model_dump(include=cells), sent
    # agents keep whole copies of files in their homes
    shutil.rmtree(tmp_path, ignore_errors=True)
