"""The Compose folder of every profile and shape: the deployment's settings, and nothing of the machine."""

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.compose import ALL_GPUS, environment_of, member_plans
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.features.export.compose import (
    KEPT,
    USER,
    ComposeSource,
    LockedRole,
    compose_document,
    compose_folder,
    project_of,
)
from dflash_deploy.features.export.operations import compose_source
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from tests.support.composed_folders import SHAPES, plans_in
from tests.support.manifests import plan_for
from tests.support.rows import yaml_document

DIGEST = f"registry.example.com/dflash@sha256:{'0' * 64}"
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)")


def source_of(plan: Plan, place: Path) -> ComposeSource:
    return compose_source(Deployment(place, text=""), plan)


@cache
def sources_in(shape: str) -> Mapping[str, ComposeSource]:
    """The source of each plan of a shape, of a deployment without files of its own."""
    return {name: source_of(plan, Path(__file__).parent) for name, plan in plans_in(shape).items()}


@cache
def folders_in(shape: str) -> Mapping[str, Mapping[str, str]]:
    """The texts of the folder of each plan of a shape."""
    return {name: compose_folder(source) for name, source in sources_in(shape).items()}


def services_of(source: ComposeSource) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose_document(source)["services"]
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_every_profile_has_the_settings_of_its_deployment(shape: str) -> None:
    seen = set()
    for name, plan in plans_in(shape).items():
        services = services_of(sources_in(shape)[name])
        engines = {one: service for one, service in services.items() if one.startswith("engine")}
        assert services.keys() - engines.keys() == SHAPES[shape], name
        own = member_plans(plan) or (plan,)
        for service, one in zip(engines.values(), own, strict=True):
            written = {key: text.replace("$$", "$") for key, text in service["environment"].items()}
            assert KEYS_FILE not in written
            for key, value in environment_of(one).items():
                # each of several engines listens on the same port, in its own container
                if key not in {"REPLICAS", "ROUTER_ENGINES", "DFLASH_DOMAIN", "DRAIN_SECONDS"}:
                    by_path = key == "DFLASH_DRAFTER" and value.startswith("/")
                    assert written[key] == ("/models/drafter" if by_path else value), (name, key)
            assert (ALL_GPUS in written) is not plan.engine.cpu
        seen.add(plan.engine.engine)
    assert seen >= {"vllm", "sglang", "llamacpp"}


@pytest.mark.parametrize("shape", SHAPES)
def test_variables_are_left_for_paths_and_user_only(shape: str) -> None:
    for name, plan in plans_in(shape).items():
        texts = folders_in(shape)[name]
        found = set(VARIABLE.findall(texts["compose.yaml"]))
        assert found == {USER, *(KEPT if plan.drafting else KEPT[:1])}, name
        assert "/.dflash" not in texts["compose.yaml"], name
        for variable in found:
            assert re.search(rf"^{variable}=", texts["env.template"], re.MULTILINE), name


def test_each_file_that_is_mounted_or_built_from_is_in_the_folder() -> None:
    for shape in ("single", "replicas and domain"):
        for name, texts in folders_in(shape).items():
            document = yaml_document(texts["compose.yaml"])
            folders = {path.split("/")[0] for path in texts}
            for service in document["services"].values():
                places = [one["source"] for one in service["volumes"] if one["source"].startswith("./")]
                # setup.sh makes the directory of the certificates
                assert {place.split("/")[1] for place in places} <= folders, name
                if "build" in service:
                    build = service["build"]
                    assert f"build/{build['dockerfile']}" in texts, name
                    copied = re.findall(r"^COPY (?!--from)(\S+) ", texts[f"build/{build['dockerfile']}"], re.MULTILINE)
                    assert copied
                    for one in copied:
                        assert any(path.startswith(f"build/{one.rstrip('/')}") for path in texts), (name, one)


def test_a_pinned_image_of_the_deployment_is_pulled(tmp_path: Path) -> None:
    source = source_of(plan_for("h100"), tmp_path)
    (service,) = source.document["services"].values()
    service.pop("build", None)
    service["image"] = DIGEST
    assert f"`{DIGEST}` is pulled.\n" in compose_folder(source)["README.md"]
    service["image"] = "example.com/vllm:1"
    assert "`example.com/vllm:1` is pulled; it has no digest." in compose_folder(source)["README.md"]


def test_the_router_gets_all_engines(tmp_path: Path) -> None:
    plan = plan_for("h100", replicas=3)
    source = source_of(plan, tmp_path)
    workers = json.loads(compose_folder(source)["router/workers.json"])["workers"]
    assert [one["url"] for one in workers] == [f"http://engine-{number}:8000" for number in (1, 2, 3)]
    assert {tuple(one["models"]) for one in workers} == {plan.settings.served_model_name}


def test_the_metrics_of_the_router_are_not_published_without_its_list_of_keys(tmp_path: Path) -> None:
    texts = compose_folder(source_of(plan_for("h100", replicas=2), tmp_path))
    assert "path /replicas/2/metrics" in texts["door/Caddyfile"]
    assert "/router/metrics" not in texts["door/Caddyfile"]
    assert "router's own metrics are not published" in texts["README.md"]


def test_a_person_changes_no_file_that_the_export_writes(tmp_path: Path) -> None:
    texts = compose_folder(source_of(plan_for("h100"), tmp_path))
    weights = texts["README.md"].partition("## 2. The weights")[2].partition("## 3.")[0]
    assert "`.env` names their directories" in weights
    assert ".env" not in texts
    assert "env.template" not in texts["README.md"]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_name_is_shared_with_a_copy_of_the_folder(shape: str) -> None:
    """`down` in a copy stopped the containers of the original: both had the `name` of the file."""
    for name, texts in folders_in(shape).items():
        document = yaml_document(texts["compose.yaml"])
        assert "name" not in document, name
        assert not [one for one in document["services"].values() if "container_name" in one], name
        for kind in ("volumes", "networks", "secrets"):
            assert not [
                one for one in document.get(kind, {}).values() if "name" in (one or {}) or "external" in (one or {})
            ]


@pytest.mark.parametrize("name", ["é", "...", "-_-", "日本"])
def test_a_folder_whose_name_gives_no_project_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="gives no name for a Compose project"):
        project_of(Path("/srv") / name)


def test_the_weights_are_fetched_at_the_commits_of_the_lock(tmp_path: Path) -> None:
    source = source_of(plan_for("h100"), tmp_path)
    target = LockedRole("lab/target", "0" * 40, {"config.json": None, "a b.safetensors": "1" * 64})
    source = ComposeSource(**{**vars(source), "lock": "{}\n", "locked": {"target": target}})
    texts = compose_folder(source)
    assert texts["weights/target.files"] == "config.json\na b.safetensors\n"
    assert texts["weights/target.sha256"] == f"{'1' * 64}  a b.safetensors\n"
    assert texts["dflash.lock"] == "{}\n"
    readme = texts["README.md"]
    assert f"hf download lab/target --revision {'0' * 40} \\\n" in readme
    assert "The lock does not have the drafter" in readme


def test_the_example_request_names_the_model(tmp_path: Path) -> None:
    plan = plan_for("h100")
    readme = compose_folder(source_of(plan, tmp_path))["README.md"]
    (line,) = [line for line in readme.splitlines() if line.strip().startswith("'{")]
    assert json.loads(shlex.split(line)[0])["model"] == plan.settings.served_model_name[0]
