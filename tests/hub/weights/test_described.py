"""Models found on the Hub by their metadata: no weights are downloaded."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import RepositoryGated, RepositoryMissing
from dflash_deploy.plan.described import describe
from dflash_deploy.redact import Secret
from dflash_deploy.weights.described import ModelFinder
from dflash_deploy.weights.hub import Source
from tests.support.hub import Hub
from tests.support.hub.faults import Answer

CARD = "---\nlicense: mit\nbase_model: own/acorn\n---\n"


def files(name: str, **more: str) -> dict[str, bytes | str | Path]:
    place = Path(str(asset(f"models/tiny/{name}")))
    return {**{one.name: one for one in place.iterdir()}, **more}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        hub.add("own/acorn", files("target", **{f"x{number}.txt": "x" for number in range(3000)}))
        hub.add("own/acorn-DFlash", files("drafter", **{"README.md": CARD}))
        other = json.loads((Path(str(asset("models/tiny/drafter"))) / "config.json").read_text())
        wrong = {"README.md": CARD, "config.json": json.dumps({**other, "hidden_size": 4096})}
        hub.add("own/a-DFlash-of-another-size", {**wrong, "model.safetensors": b"x" * 100})
        yield hub


def test_target_and_drafter_are_described_from_their_headers(hub: Hub, tmp_path: Path) -> None:
    finder = ModelFinder(Source(hub.endpoint, Secret("")), tmp_path)
    target = finder.find("own/acorn")
    drafter = finder.drafter_for(target)
    assert drafter is not None
    family = describe(target, drafter)
    assert (family.drafter.repo, family.drafter.licence) == ("own/acorn-DFlash", "mit")
    assert (family.shape.layers, family.targets[0].licence, family.targets[0].bytes) == (8, "", 5397240)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_gated_and_missing_repositories_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.add("own/closed", files("target"), access="gated")
    finder = ModelFinder(Source(hub.endpoint, Secret("")), tmp_path)
    with pytest.raises(RepositoryGated):
        finder.find("own/closed")
    with pytest.raises(RepositoryMissing):
        finder.find("own/nothing")
    hub.add("own/empty", {"README.md": "no weights"})
    with pytest.raises(RepositoryMissing, match="no safetensors file and no GGUF"):
        finder.find("own/empty")


def test_a_renamed_repository_is_found_under_its_new_name(hub: Hub, tmp_path: Path) -> None:
    moved = Answer(307, {"Location": "/api/models/own/acorn?blobs=true"})
    hub.faults("/api/models/own/former", moved, stage="api", method="*", forever=True)
    assert ModelFinder(Source(hub.endpoint, Secret("")), tmp_path).find("own/former").place["repo"] == "own/acorn"


def test_a_repository_of_ggufs_has_one_chosen_by_its_header(hub: Hub, tmp_path: Path) -> None:
    gguf = Path(str(asset("models/tiny/gguf"))) / "target.gguf"
    names = ("acorn-Q8_0.gguf", "acorn-Q4_K_M.gguf", "mmproj-F16.gguf")
    hub.add("own/acorn-GGUF", dict.fromkeys(names, gguf))
    finder = ModelFinder(Source(hub.endpoint, Secret("")), tmp_path)
    family = describe(finder.find("own/acorn-GGUF"), None)
    target = family.targets[0]
    assert (target.file, target.projector, target.quantisation) == (names[1], names[2], "gguf")
    assert (family.shape.layers, target.bytes) == (8, gguf.stat().st_size)
    assert finder.find("own/acorn-GGUF/acorn-Q8_0.gguf").place["file"] == names[0]
    with pytest.raises(RepositoryMissing, match=r"has no other\.gguf"):
        finder.find("own/acorn-GGUF/other.gguf")
