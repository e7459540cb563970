"""The exported Compose folder and the real Compose, `sh` and `openssl`."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.export.compose import compose_folder, project_of
from dflash_deploy.features.export.operations import compose_source
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.gateway.keys import Keyring
from dflash_deploy.serve.router.files import read_keys
from dflash_deploy.serve.secrets import SECRETS_FILE, read_secrets
from tests.support.commands import checked
from tests.support.composed_folders import SHAPES, plans_in
from tests.support.manifests import plan_for

COMPOSE = Path(sys.executable).with_name("docker-compose")
PUBLISHED = {"single": {"engine"}, "domain": {"engine", "door"}}
"""Services with ports of the machine; the door only in the other shapes."""

PLAIN = {"PATH": "/usr/bin:/bin"}


def written(plan: Plan, place: Path) -> Path:
    """The folder of a plan."""
    place.mkdir(parents=True, exist_ok=True)
    source = compose_source(Deployment(place, text=""), plan)
    for name, text in compose_folder(source).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def setup(folder: Path, *args: str, path: str = PLAIN["PATH"]) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(folder / "setup.sh"), *args]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def config_of(folder: Path) -> dict[str, Any]:
    """What Compose reads in a folder. Nothing but the folder tells it a value."""
    command = [str(COMPOSE), "config", "--format", "json"]
    done = subprocess.run(command, cwd=folder, env=PLAIN, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), folder
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize("shape", SHAPES)
def test_compose_reads_the_folder_of_every_profile(shape: str, tmp_path: Path) -> None:
    made = {name: written(plan, tmp_path / name) for name, plan in plans_in(shape).items()}
    for folder in made.values():
        (folder / ".env").write_text((folder / "env.template").read_text().replace("DFLASH_USER=", "DFLASH_USER=7:8"))
    with ThreadPoolExecutor(2) as pool:
        read = dict(zip(made, pool.map(config_of, made.values()), strict=True))
    for name, document in read.items():
        assert {service["user"] for service in document["services"].values()} == {"7:8"}, name
        published = {one for one, service in document["services"].items() if service.get("ports")}
        assert published == PUBLISHED.get(shape, {"door"}) or "network_mode" in document["services"]["engine"], name
    print(f"{shape}: {len(read)} folders")


NAMES = ["COPY", "vision-copy", "_Vision.2 of Ada", "other/vision.b", "vision copy é"]


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_a_project_of_its_own(name: str, tmp_path: Path) -> None:
    """Its containers, volumes and networks have the name of its project, which Compose makes of the folder's."""
    folder, copy = written(plan_for("h100", replicas=2), tmp_path / "vision"), tmp_path / name
    assert setup(folder).returncode == 0
    copy.parent.mkdir(exist_ok=True)
    checked("cp", "-r", str(folder), str(copy))
    names = []
    for one in (folder, copy):
        read = config_of(one)
        assert read["name"] == project_of(one)
        named = [made["name"] for kind in ("volumes", "networks", "secrets") for made in read[kind].values()]
        assert {made.partition("_")[0] for made in named} == {read["name"].partition("_")[0]}
        names += [read["name"], *named]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["vision", "Vision", "_vi.sion"])
def test_setup_refuses_the_name_of_a_folder_whose_containers_exist(name: str, tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path / name)
    (tmp_path / "bin").mkdir()
    docker, place = tmp_path / "bin/docker", tmp_path / "place"
    # as Docker 28 lists them: a line with the folder for each container of the project
    docker.write_text(f'#!/bin/sh\ncase "$*" in *project=vision\\ *) cat {place} ;; esac\n')
    docker.chmod(0o755)
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    place.write_text("/srv/other/vision\n")
    done = setup(folder, path=path)
    assert (done.returncode, (folder / ".env").exists()) == (1, False)
    assert "Docker has containers of the project vision from another folder: rename this one" in done.stderr
    place.write_text(f"{folder}\n{folder}\n")
    assert setup(folder, path=path).returncode == 0
    (folder / ".env").unlink()
    docker.write_text("#!/bin/sh\nexit 1\n")
    assert setup(folder, path=path).returncode == 0


def test_compose_says_what_is_missing_before_setup(tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path)
    done = subprocess.run([str(COMPOSE), "config"], cwd=folder, env=PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "setup.sh" in done.stderr or "MODEL_HOST_PATH" in done.stderr


def test_setup_makes_keys_that_engines_and_router_accept(tmp_path: Path) -> None:
    folder = written(plan_for("h100", replicas=2, domain="10.0.0.7"), tmp_path)
    done = setup(folder)
    assert (done.returncode, done.stderr) == (0, "")
    env = folder / ".env"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert (folder / "door/data").is_dir()
    found = read_secrets({SECRETS_FILE: str(env)})
    ring, keys = Keyring(found), read_keys(folder / "router/keys.json")
    assert stat.S_IMODE((folder / "router/keys.json").stat().st_mode) == 0o600
    scopes = [known.scope for key in (found["VLLM_API_KEY"], keys.probe) if (known := ring.find(key.encode()))]
    assert scopes == ["all", "metrics"]
    assert ring.find(keys.admin.encode()) is None
    assert config_of(folder)["services"]["engine-1"]["user"] == f"{os.getuid()}:{os.getgid()}"
    before = env.read_text()
    assert found["VLLM_API_KEY"] not in done.stdout
    again = setup(folder)
    assert again.returncode == 1
    assert ".env exists" in again.stderr
    assert env.read_text() == before


def test_setup_takes_the_key_of_a_file_and_shows_it_to_no_program(tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path / "folder")
    key = "Ab1_-" * 8
    (tmp_path / "key").write_text(f"{key}\n")
    # each program writes down its arguments and its environment
    (tmp_path / "bin").mkdir()
    for name in ("cat", "dirname", "id", "mv", "openssl"):
        shown = tmp_path / "bin" / name
        shown.write_text(
            f'#!/bin/sh\n{{ echo "{name} $*"; /usr/bin/env; }} >> {tmp_path}/seen\nexec /usr/bin/{name} "$@"\n'
        )
        shown.chmod(0o755)
    done = setup(folder, str(tmp_path / "key"), path=f"{tmp_path}/bin:/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert read_secrets({SECRETS_FILE: str(folder / ".env")})["VLLM_API_KEY"] == key
    seen = (tmp_path / "seen").read_text()
    assert "cat -- " in seen
    assert key not in seen


@pytest.mark.parametrize(
    "key", ["", "too-short", "with a blank in the key", 'quo"te-quote-quote', "two-lines-of\nkeys-of-16-characters"]
)
def test_setup_refuses_what_is_no_key(key: str, tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path / "folder")
    (tmp_path / "key").write_text(key)
    done = setup(folder, str(tmp_path / "key"))
    assert done.returncode == 1
    assert "an API key has" in done.stderr
    assert not (folder / ".env").exists()


def test_setup_makes_nothing_without_its_programs(tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path / "folder")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dirname").symlink_to("/usr/bin/dirname")
    command = ["/bin/sh", str(folder / "setup.sh")]
    done = subprocess.run(command, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "setup.sh: openssl cannot make a key: install it" in done.stderr
    assert not (folder / ".env").exists()


def test_setup_runs_from_anywhere_and_reads_a_template_without_a_last_line_end(tmp_path: Path) -> None:
    folder = written(plan_for("h100"), tmp_path / "a $HOME b")
    template = folder / "env.template"
    template.write_text(template.read_text().removesuffix("\n"))
    # a shell with CDPATH goes to another folder of this name, and says so
    (tmp_path / "other" / folder.name).mkdir(parents=True)
    done = subprocess.run(
        ["sh", f"{folder.name}/setup.sh"],
        cwd=tmp_path,
        env={**PLAIN, "CDPATH": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / ".env").read_text().splitlines()[-1] == f"DFLASH_USER={os.getuid()}:{os.getgid()}"


@pytest.mark.parametrize("mark", ["\r", "mine"])
def test_setup_refuses_a_template_that_it_cannot_fill_in(mark: str, tmp_path: Path) -> None:
    folder = written(plan_for("h100", replicas=2), tmp_path)
    template = folder / "env.template"
    text = template.read_text()
    template.write_bytes(text.replace("DFLASH_API_KEYS=\n", f"DFLASH_API_KEYS={mark}\n").encode())
    done = setup(folder)
    assert done.returncode == 1
    assert "env.template needs the lines VLLM_API_KEY=, DFLASH_USER=, DFLASH_API_KEYS=" in done.stderr
    assert not list(folder.glob(".env*"))
    template.write_text(text)
    # as a run that was killed leaves it, readable by others
    (folder / ".env.new").write_text("")
    (folder / ".env.new").chmod(0o644)
    (folder / "router/keys.json").chmod(0o644)
    assert setup(folder).returncode == 0
    for file in (".env", "router/keys.json"):
        assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600


def test_git_keeps_no_file_that_has_a_key(tmp_path: Path) -> None:
    folder = written(plan_for("h100", replicas=2, domain="10.0.0.7"), tmp_path)
    assert setup(folder).returncode == 0
    (folder / "door/data/root.key").write_text("")
    (folder / ".env.old").write_text("")
    checked("git", "init", "--quiet", str(folder))
    kept = checked("git", "-C", str(folder), "ls-files", "--others", "--exclude-standard").splitlines()
    assert {"env.template", "compose.yaml", "router/workers.json", "door/Caddyfile"} <= set(kept)
    assert not {".env", ".env.old", "router/keys.json", "door/data/root.key"} & set(kept)
