"""One host downloads the weights, the other one copies them over the fabric: also after a kill, and to an answer."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import checked, wait_until
from tests.support.fleet_command import started
from tests.support.fleet_hub import FILES, PAIR, hub_behind, write_catalog
from tests.support.fleet_lab import FABRIC, Host, Lab, states
from tests.support.hub import Hub

MODELS = "dflash-carried"
"""The directory of weights, below the home directory of each machine."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalog with the tiny pair on the Hub, for the terminal."""
    written = write_catalog(tmp_path_factory.mktemp("catalog") / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CATALOG", str(written))
        yield written


@pytest.fixture
def hub(whole_lab: Lab, catalog: Path) -> Iterator[Hub]:
    """A Hub that sends 20 Mbit/s to both hosts together."""
    whole_lab.clear()
    for host in whole_lab.hosts:
        host.stop()
        host.start(server_lines=(f"SetEnv DFLASH_CATALOG={catalog} HF_HOME={host.home}/hf",))
        whole_lab.wait_for(host)
    with hub_behind(whole_lab, 20) as running:
        yield running
    whole_lab.clear()


@pytest.fixture
def pair(whole_lab: Lab, hub: Hub) -> Lab:
    """The lab with a deployment whose weights are on the Hub, and which are to go over the fabric."""
    found = replace(whole_lab, directory=whole_lab.root / "carried")
    found.directory.mkdir()
    options = ("--profile", "cpu", "--model", PAIR, "--engine", "llamacpp", "--runtime", "native", "--port", "8000")
    found.dflash("init", *options, "--models-dir", str(Path.home() / MODELS)).succeeded()
    found.write_fleet("weights: fabric", f"settings: {{HF_ENDPOINT: {hub.endpoint!r}}}")
    return found


def weights_of(host: Host) -> dict[str, str]:
    """The digest of each file of weights of a host by name, part files included."""
    files = (file for file in (host.home / MODELS).rglob("*") if file.suffix in {".gguf", ".part"})
    return {file.name: checked("sha256sum", str(file)).split()[0] for file in files}


def transfers(lab: Lab) -> list[int]:
    """The processes that offer or take weights."""
    return [pid for host in lab.hosts for words in ("fleet offer", "fleet take") for pid in host.processes(words)]


def test_weights_are_downloaded_once_and_carried_also_after_a_kill(pair: Lab, hub: Hub) -> None:
    first, other = pair.hosts
    checked("tc", "-n", first.namespace, "qdisc", "add", "dev", FABRIC, "root", "tbf", "rate", "6mbit",
            "burst", "64kb", "latency", "100ms")  # fmt: skip
    with started(pair, "fleet", "up") as up:
        line = up.until("weights      host-a fetches, the others over fab0")
        assert "fleet.yaml asks for it" in line
        while not up.until("fetching weights: ").startswith("host-b"):
            continue
        up.process.send_signal(signal.SIGKILL)
        up.ended()
    # the hosts notice that the terminal is gone
    assert wait_until(lambda: not transfers(pair), 300)
    assert set(weights_of(first)) == set(FILES)
    assert set(weights_of(other)) != set(FILES)
    checked("tc", "-n", first.namespace, "qdisc", "del", "dev", FABRIC, "root")

    done = pair.dflash("fleet", "up", "--json").succeeded()
    assert states(done.document) == ["ready", "ready"]
    moved = done.document["data"]["weights"]
    assert (moved["way"], moved["source"]) == ("fabric", "host-a")
    assert moved["carried_bytes"] > 0
    assert weights_of(first) == weights_of(other)
    assert set(weights_of(first)) == set(FILES)
    # each file came from the Hub once
    assert hub.sent("*.gguf") == sum((first.home / MODELS / name).stat().st_size for name in sizes(first))
    locks = {(place / "dflash.lock").read_text() for place in (pair.directory, first.deployment, other.deployment)}
    assert len(locks) == 1
    assert not transfers(pair)

    again = pair.dflash("fleet", "up", "--json").succeeded()
    assert again.document["data"]["weights"]["way"] == "present"


def sizes(host: Host) -> list[str]:
    """The paths of the weights of a host below MODELS."""
    return [str(file.relative_to(host.home / MODELS)) for file in (host.home / MODELS).rglob("*.gguf")]
