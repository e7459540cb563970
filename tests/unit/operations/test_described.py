"""`init --model` and `models add` with the tiny target and draft model under other names."""

import json
import shutil
from functools import partial
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from dflash_deploy import planning
from dflash_deploy.assets import asset
from dflash_deploy.cli.planned import model_lines
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput, CatalogRefused, NotPossible, UnknownPair, WeightsMissing
from dflash_deploy.intake.web import fetch_text
from dflash_deploy.operations import described, plan
from dflash_deploy.operations.described import add, entry_at, with_models
from dflash_deploy.operations.foreign import plan_from
from dflash_deploy.operations.plan import init
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import UNREAD, plan_of


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (planning, plan):
        monkeypatch.setattr(module, "read_facts", lambda: UNREAD)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return Path(shutil.copytree(str(asset("models/tiny/target")), tmp_path / "acorn"))


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(str(asset("models/tiny/drafter")), tmp_path / "oak"))


def changed(config: Path, **values: object) -> None:
    known = json.loads(config.read_text())
    config.write_text(json.dumps({**known, **values, "text_config": {**known.get("text_config", {}), **values}}))


def choice(target: Path | str, drafter: Path | str) -> Choice:
    return Choice(profile="cpu", engine="vllm", runtime="native", model=str(target), drafter_of=str(drafter))


def test_a_deployment_keeps_the_entry_of_its_model(tmp_path: Path, target: Path, drafter: Path) -> None:
    made = init(tmp_path / "there", choice(target, drafter)).plan
    again = plan_of(Deployment(tmp_path / "there"))
    assert again.pair == made.pair
    assert (again.pair.sees, again.drafting) == (True, True)
    assert again.settings.model_host_path == str(target)
    assert again.settings.dflash_num_spec_tokens == 7
    assert not made.errors, made.errors
    assert "licence not stated" in " ".join(model_lines(again))


def test_init_with_a_known_model_forgets_an_earlier_entry(tmp_path: Path, target: Path) -> None:
    init(tmp_path / "there", choice(target, "off"))
    known = Choice(profile="cpu", engine="vllm", runtime="native", model="tiny")
    init(tmp_path / "there", known, force=True)
    assert plan_of(Deployment(tmp_path / "there")).pair.name == "tiny"


@pytest.mark.parametrize(("asked", "set_to"), [("off", "off"), ("mtp", "mtp")])
def test_it_serves_without_a_drafter_or_with_the_mtp_head(
    tmp_path: Path, target: Path, asked: str, set_to: str
) -> None:
    made = init(tmp_path / "there", choice(target, asked)).plan
    assert made.settings.dflash_drafter == set_to
    assert not made.drafting
    assert plan_of(Deployment(tmp_path / "there")).settings.dflash_drafter == set_to


def test_the_headers_win_over_a_config_that_lies(target: Path) -> None:
    changed(target / "config.json", hidden_size=999, num_hidden_layers=4)
    family = add(str(target), "off", target.parent).family
    assert (family.shape.hidden_size, family.shape.layers) == (128, 8)
    assert "config.json says hidden_size 999, the weights have 128" in family.targets[0].notice


def test_a_drafter_of_another_target_is_refused(target: Path, drafter: Path) -> None:
    changed(drafter / "config.json", vocab_size=5000)
    with pytest.raises(NotPossible, match="vocabulary of 5000, the target of 1024"):
        with_models(choice(target, drafter))
    with pytest.raises(NotPossible, match="not a DFlash draft model"):
        with_models(choice(target, target))
    with pytest.raises(NotPossible, match="is a draft model"):
        with_models(choice(drafter, "off"))


def test_a_known_target_takes_another_drafter(drafter: Path) -> None:
    made = with_models(choice("tiny", drafter))
    assert made.model == "tiny-own-drafter"
    assert made.family is not None
    assert made.family.targets[0].drafter is not None
    assert made.family.targets[0].drafter.path == str(drafter)


def test_weights_that_are_missing_or_cut_short_are_refused(tmp_path: Path, target: Path) -> None:
    (target / "model.safetensors").unlink()
    with pytest.raises(WeightsMissing, match="safetensors"):
        with_models(choice(target, "off"))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((Path(str(asset("models/tiny/gguf"))) / "target.gguf").read_bytes()[:200_000])
    with pytest.raises(WeightsMissing, match="truncated"):
        with_models(choice(cut, "off"))


def test_an_engine_that_loads_no_gguf_is_refused_with_the_name_of_the_model(tmp_path: Path) -> None:
    file = shutil.copy(str(asset("models/tiny/gguf/target.gguf")), tmp_path / "acorn.gguf")
    with pytest.raises(NotPossible, match="no loader for gguf, the quantization of acorn"):
        init(tmp_path / "there", Choice(profile="h100", model=str(file), drafter_of="off"))


def test_a_recipe_with_a_drafter_that_is_missing_is_planned_without_drafts(target: Path) -> None:
    config = json.dumps({"method": "dflash", "model": "/nothing/here", "num_speculative_tokens": 5})
    text = f"vllm serve {target} --max-model-len 2k --speculative-config '{config}'"
    asked = Choice(profile="cpu", engine="vllm", runtime="native")
    found = plan_from(text, asked, UNREAD, find=with_models)
    assert found.plan is not None, found.failure
    assert (found.plan.speculating, found.plan.settings.max_model_len) == (False, 2000)
    rows = {row.name: (row.fate, row.ours) for row in found.items}
    assert rows["--model"] == ("taken", "DFLASH_PAIR=acorn")
    assert rows["--speculative-config.model"] == ("changed", "DFLASH_DRAFTER=off")


def test_a_misspelt_name_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(UnknownPair, match="not a known model"):
        with_models(choice("tinny", "off"))
    for place in ("./nothing", "/nothing/here.gguf"):
        with pytest.raises(WeightsMissing, match=f"{Path(place).absolute()} does not exist"):
            with_models(choice(place, "off"))
    with pytest.raises(BadInput, match="--drafter needs the target"):
        with_models(Choice(drafter_of="./oak"))


def test_an_entry_is_written_and_read_again(tmp_path: Path, target: Path, drafter: Path) -> None:
    added = add(str(target), str(drafter), tmp_path, tmp_path / "catalog")
    assert added.file == tmp_path / "catalog" / "families" / "acorn.yaml"
    assert entry_at(str(added.file)) == added.family
    made = with_models(Choice(model=str(added.file)))
    assert (made.model, made.family) == ("acorn", added.family)
    added.file.write_text("name: acorn\nwrong: 1\n")
    with pytest.raises(CatalogRefused, match="wrong"):
        entry_at(str(added.file))
    with pytest.raises(NotPossible, match="has tiny already"):
        add("tiny", None, tmp_path)


def test_an_entry_is_read_from_a_url_with_its_digest(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = add(str(target), "off", tmp_path)

    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/old/"):
            return httpx.Response(302, headers={"Location": "/acorn.yaml"}, content=iter(()))
        return httpx.Response(200, content=iter((added.entry.encode(),)))

    served = httpx.MockTransport(serve)
    monkeypatch.setattr(described, "fetch_text", partial(fetch_text, resolve=lambda _: ("8.8.8.8",), transport=served))
    url, digest = "https://models.example/old/acorn.yaml", sha256(added.entry.encode()).hexdigest()
    made = with_models(Choice(model=f"{url}#sha256={digest}"))
    assert (made.model, made.family) == (added.name, added.family)
    for said, place in (("has no digest", url), ("has another digest", f"{url}#sha256={digest[:-1]}")):
        with pytest.raises(CatalogRefused, match=said) as refused:
            entry_at(place)
        assert f"#sha256={digest}" in str(refused.value.hint)
