"""`export compose`: a folder without a key and without this machine, that a person may keep and change."""

from pathlib import Path

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE
from dflash_deploy.errors import ExitCode
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel
from tests.support.cli import Ran, dflash, edit_env, initialise

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = (LockedFile("model.safetensors", 3 * 2**30, sha256="0" * 64),)
TARGET, DRAFTER = LockedModel("lab/target", COMMIT, FILES), LockedModel("lab/drafter", COMMIT, FILES)


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    place = tmp_path / "vision"
    initialise("--profile", "cpu", "--runtime", "compose", at=place)
    return place


def texts_of(out: Path) -> dict[str, str]:
    return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}


def export(deployment: Path, *options: str) -> Ran:
    return dflash(
        "export", "compose", *(("--out", "compose", *options) if "--out" not in options else options), at=deployment
    )


@pytest.mark.parametrize("edits", [{}, {"REPLICAS": "2"}, {"DFLASH_DOMAIN": "ai.example.com"}])
def test_no_file_has_a_key_or_a_path_of_this_machine(deployment: Path, edits: dict[str, str]) -> None:
    edit_env(deployment, DFLASH_API_KEYS=f"alice:{'b7' * 20}", HF_TOKEN="hf_" + "a1b2c3d4e5" * 3, **edits)
    (deployment / LOCK_FILE).write_text(Lock({"target": TARGET, "drafter": DRAFTER}).text())
    ran = export(deployment, "--json").succeeded()
    data, out = ran.document["data"], deployment / "compose"
    texts = texts_of(out)
    assert texts.keys() == {*data["files"], ".dflash-export.json"}
    assert data["locked"] == ["target", "drafter"]
    read = Deployment(deployment)
    for secret in (read.key.reveal(), read.further_keys[0].key, read.secrets["HF_TOKEN"].reveal()):
        assert not [name for name, text in {**texts, "out": ran.out}.items() if secret in text and name != "out"]
        assert secret not in ran.out + ran.err
    places = [read.values["MODEL_HOST_PATH"], read.values["DRAFTER_HOST_PATH"]]
    for place in places:
        assert [name for name, text in texts.items() if place in text] == ["env.template"]
    # the record of the export is not one of its files
    for here in (str(deployment.parent), str(Path.home())):
        assert [name for name, text in texts.items() if f"{here}/" in text] in ([], ["env.template"])
    assert "VLLM_API_KEY=\n" in texts["env.template"]


def test_the_project_has_the_name_of_the_folder(deployment: Path) -> None:
    ran = dflash("export", "compose", "--json", at=deployment).succeeded()
    own = Deployment(deployment).project_name
    assert own.startswith("dflash-vision-")
    assert ran.document["data"]["name"] == f"{own}-export"
    assert ran.document["data"]["directory"] == str(deployment / f"{own}-export")
    assert "name" not in yaml.safe_load((deployment / f"{own}-export/compose.yaml").read_text())
    assert export(deployment, "--out", "My folder", "--json").succeeded().document["data"]["name"] == "myfolder"


def test_directories_of_one_name_in_two_places_are_two_projects(tmp_path: Path) -> None:
    names = set()
    for place in ("a", "b"):
        there = tmp_path / place / "vision"
        initialise("--profile", "cpu", "--runtime", "compose", at=there)
        names.add(Deployment(there).project_name)
        names.add(dflash("export", "compose", "--json", at=there).succeeded().document["data"]["name"])
    assert len(names) == 4


def test_a_second_export_keeps_what_a_person_added_and_stops_at_an_edited_file(deployment: Path) -> None:
    out = deployment / "compose"
    export(deployment).succeeded()
    (out / ".env").write_text("VLLM_API_KEY=mine\n")
    (out / "compose.override.yaml").write_text("services: {}\n")
    edit_env(deployment, MAX_NUM_SEQS="3")
    export(deployment).succeeded()
    assert (
        yaml.safe_load((out / "compose.yaml").read_text())["services"]["engine"]["environment"]["MAX_NUM_SEQS"] == "3"
    )
    assert (out / ".env").read_text() == "VLLM_API_KEY=mine\n"
    (out / "compose.yaml").write_text("services: {}\n")
    ran = export(deployment)
    assert ran.code is ExitCode.USAGE
    said = " ".join(ran.err.split())
    assert "compose.yaml was edited" in said
    assert "move your changes to compose.override.yaml" in said
    assert (out / "compose.yaml").read_text() == "services: {}\n"


@pytest.mark.parametrize(
    ("edits", "options", "code", "said"),
    [
        ({"DFLASH_RUNTIME": "native"}, (), ExitCode.USAGE, "the deployment runs natively, and Compose runs images"),
        ({"ROUTER_ENGINES": "10.0.0.2:8000"}, (), ExitCode.USAGE, "ROUTER_ENGINES: the router sends to engines of"),
        ({"MAX_MODEL_LEN": "999999"}, (), ExitCode.PREFLIGHT, "999999"),
        ({}, ("--out", "."), ExitCode.USAGE, "has files that this command did not write"),
        ({}, ("--out", ".dflash/out"), ExitCode.USAGE, "is a directory of a deployment"),
        ({}, ("--out", "é"), ExitCode.USAGE, "`é` gives no name for a Compose project"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    deployment: Path, edits: dict[str, str], options: tuple[str, ...], code: ExitCode, said: str
) -> None:
    if edits:
        edit_env(deployment, **edits)
    before = {path: path.read_bytes() for path in deployment.rglob("*") if path.is_file()}
    ran = export(deployment, *options)
    assert ran.code is code
    assert said in " ".join(ran.err.split())
    assert "hint:" in ran.err
    assert {path: path.read_bytes() for path in deployment.rglob("*") if path.is_file()} == before


def test_two_forms_do_not_share_a_folder(deployment: Path) -> None:
    dflash("export", "kubernetes", "--out", "out", at=deployment).succeeded()
    ran = export(deployment, "--out", "out")
    assert ran.code is ExitCode.USAGE
    assert "has an export for kubernetes" in " ".join(ran.err.split())
