"""What the router is started with, and how its list of engines follows the manifest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve.router.__main__ import arguments
from dflash_deploy.serve.router.files import (
    RoutedEngine,
    RouterKeys,
    SeenWorker,
    manifest_of,
    read_keys,
    read_manifest,
    read_seen,
    seen_of,
)
from dflash_deploy.serve.router.values import router_values
from dflash_deploy.serve.router.workers import WorkerKeeper
from dflash_deploy.serve.settings import Settings

KEYS = RouterKeys("admin-key-of-the-router", "probe-key-of-the-router")
ONE, TWO = RoutedEngine("1", "http://127.0.0.1:8003", ("tiny",)), RoutedEngine("2", "http://127.0.0.1:8004", ("tiny",))


class ScriptedSmg:
    """SMG's administration: keeps the engines that it is given."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.forgets = False

    def __call__(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        if method == "GET":
            return {"workers": [{"id": f"id-{url}", "url": url, **one} for url, one in self.engines.items()]}
        self.calls.append((method, path))
        if method == "DELETE":
            self.engines.pop(path.removeprefix("/workers/id-"))
            return {}
        assert body is not None
        if not self.forgets:
            self.engines[str(body["url"])] = {"is_healthy": True, "load": 3, "asked": dict(body)}
        return {}


def keeper(directory: Path, smg: ScriptedSmg) -> WorkerKeeper:
    return WorkerKeeper(directory, smg, KEYS)


def write(directory: Path, *workers: RoutedEngine) -> None:
    (directory / "workers.json").write_text(manifest_of(workers))


def test_metrics_without_a_key_are_on_loopback_only() -> None:
    given = arguments(Settings({"DFLASH_BIND": "0.0.0.0", "DFLASH_PORT": "8000"}), KEYS)
    assert (given["host"], given["prometheus_host"], given["prometheus_port"]) == ("0.0.0.0", "127.0.0.1", 8001)


def test_the_engines_follow_the_manifest(tmp_path: Path) -> None:
    smg = ScriptedSmg()
    keeps = keeper(tmp_path, smg)
    keeps.step()
    assert not smg.engines
    write(tmp_path, ONE, TWO)
    keeps.step()
    assert set(smg.engines) == {ONE.url, TWO.url}
    write(tmp_path, TWO)
    keeps.step()
    assert set(smg.engines) == {TWO.url}
    keeps.step()
    assert read_seen(tmp_path / "seen.json")[1] == (SeenWorker(TWO.url, True, 3),)
    assert (tmp_path / "seen.json").stat().st_mode & 0o777 == 0o600


def test_an_engine_is_registered_with_the_key_that_only_opens_metrics(tmp_path: Path) -> None:
    smg = ScriptedSmg()
    write(tmp_path, ONE)
    keeper(tmp_path, smg).step()
    asked = smg.engines[ONE.url]["asked"]
    assert asked["api_key"] == KEYS.probe
    # named completely: SMG asks /v1/models otherwise, which this key does not open
    assert asked["models"] == [{"id": "tiny"}]
    assert {"runtime_type", "connection_mode"} <= set(asked)


def test_an_engine_that_does_not_appear_is_not_added_with_each_look(tmp_path: Path) -> None:
    smg = ScriptedSmg()
    smg.forgets = True
    write(tmp_path, ONE)
    keeps = keeper(tmp_path, smg)
    for _ in range(3):
        keeps.step()
    assert smg.calls == [("POST", "/workers")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workers": [{}]}', '{"workers": 3}', "\0"])
def test_a_damaged_manifest_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "workers.json").write_text(text)
    with pytest.raises(ValueError, match=r"damaged|Expecting|JSON"):
        read_manifest(tmp_path / "workers.json")


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(seen_of(12.5, [SeenWorker("http://a:1", False, 2)]))
    assert read_seen(tmp_path / "seen.json") == (12.5, (SeenWorker("http://a:1", False, 2),))
    (tmp_path / "keys.json").write_text(json.dumps({"admin": "a", "probe": "b"}))
    assert read_keys(tmp_path / "keys.json") == RouterKeys("a", "b")
    assert "a-secret" not in repr(RouterKeys("a-secret", "a-secret"))


@pytest.mark.parametrize(("sequences", "threshold"), [(None, 1), (1, 1), (4, 1), (16, 2), (32, 4), (128, 16)])
def test_the_thresholds_come_from_the_size_of_an_engine(sequences: int | None, threshold: int) -> None:
    values = router_values(sequences, hang_seconds=120, max_body_mib=64)
    assert values["balance_abs_threshold"].value == threshold
    assert all(value.reason for value in values.values())
    # with it, the last engine of two gets no requests once it has a queue
    assert values["worker_overload_protection"].value is False
