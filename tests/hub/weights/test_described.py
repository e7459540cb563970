"""Models found on the Hub by their metadata: no weights are downloaded."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.errors import NotPossible, RepositoryGated, RepositoryMissing
from dflash_deploy.intake.answers import new_client
from dflash_deploy.operations.described import with_models
from dflash_deploy.operations.foreign import plan_from
from dflash_deploy.plan.described import describe
from dflash_deploy.plan.result import Choice
from dflash_deploy.redact import Secret
from dflash_deploy.weights import hub as asking
from dflash_deploy.weights.described import ModelFinder
from dflash_deploy.weights.hub import Source
from tests.support.hub import Hub, Sources
from tests.support.hub.faults import Answer
from tests.support.machines import MACHINES
from tests.unit.plan.test_described import KNOWN, PUBLISHED, described

CARD = "---\nlicense: mit\nbase_model: own/acorn\n---\n"


def files(name: str, **more: str) -> dict[str, bytes | str | Path]:
    place = Path(str(asset(f"models/tiny/{name}")))
    return {**{one.name: one for one in place.iterdir()}, **more}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(accounts={"hf_reader": "reader"}) as hub:
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
    terms = "---\nlicense: llama3.1\n---\n"
    hub.add("own/closed", files("target", **{"README.md": terms}), access="gated", readers=frozenset({"reader"}))
    place = ModelFinder(Source(hub.endpoint, Secret("hf_reader")), tmp_path).find("own/closed").place
    assert (place["gated"], place["licence"]) == (True, "llama3.1")
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
    assert finder.find("own/acorn-GGUF:Q8_0").place["file"] == names[0]
    with pytest.raises(RepositoryMissing, match=r"has no other\.gguf"):
        finder.find("own/acorn-GGUF/other.gguf")
    with pytest.raises(RepositoryMissing, match="has no GGUF of q2_k"):
        finder.find("own/acorn-GGUF:Q2_K")


def test_published_shapes_are_the_same_from_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the certificates of a hub without TLS take 5 s of 160 requests
    monkeypatch.setattr(asking, "new_client", partial(new_client, verify=False))
    finder = ModelFinder(Source(hub.endpoint, Secret("")), tmp_path)
    template = json.dumps({"chat_template": "<tool_call><function=f></function><think>"})
    for name, (config, about) in PUBLISHED.items():
        weights = (2).to_bytes(8, "little") + b"{}"
        published: Sources = {
            "config.json": json.dumps(config),
            "tokenizer_config.json": template,
            "model.safetensors": weights,
        }
        hub.add(f"own/{name}", published)
        found = finder.find(f"own/{name}")
        if name not in KNOWN:
            with pytest.raises(NotPossible, match=about["refused"]):
                describe(found, None)
            continue
        family = describe(found, None)
        assert family.shape == described(config).shape
        assert family.targets[0].quantisation == about["quantisation"]
        assert (family.tool_call_parser, family.reasoning_parser) == ("qwen3_coder", "qwen3")
    assert len(KNOWN) >= 20


@pytest.mark.parametrize("named", ["", "own/acorn-DFlash", "own/a-DFlash-of-another-size"])
def test_a_recipe_of_an_unknown_model_has_a_plan(hub: Hub, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    config = {"method": "dflash", "model": named, "num_speculative_tokens": 5}
    text = "vllm serve own/acorn --max-model-len 2k" + (
        f" --speculative-config '{json.dumps(config)}'" if named else ""
    )
    found = plan_from(text, Choice(profile="h100"), MACHINES["h100"], find=with_models)
    assert found.plan is not None, found.failure
    assert (found.plan.pair.target.repo, found.plan.pair.drafter.repo) == ("own/acorn", "own/acorn-DFlash")
    rows = {row.name: (row.fate, row.ours) for row in found.items}
    assert rows["--model"] == ("taken", "DFLASH_PAIR=acorn")
    assert found.plan.settings.max_model_len == 2000
    assert found.plan.settings.draft_tokens == (5 if named else 7)
    # one that does not fit is replaced by the one that the Hub has for this model
    fates = {"own/acorn-DFlash": "taken", "own/a-DFlash-of-another-size": "changed"}
    assert not named or rows["--speculative-config.model"][0] == fates[named]


def test_a_recipe_of_a_missing_model_keeps_its_table(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    found = plan_from("vllm serve own/none --max-model-len 2k", Choice(profile="h100"), find=with_models)
    assert isinstance(found.failure, RepositoryMissing)
    assert [row.fate for row in found.items] == ["not-taken", "taken"]
