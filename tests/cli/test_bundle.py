"""`logs --bundle`: all that a report needs, for its owner alone, and no secret in any of it."""

import base64
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import write_archive
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env, initialise

NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "HF_ENDPOINT": "http://127.0.0.1:9"}
TOKEN = "hf_" + "tokenOfTheTest0123456789"
FURTHER_KEYS = ("key-of-a-colleague-0123456789", "key-of-the-proxy-0123456789")
OLD_KEY = "key-before-the-last-fix-0123456789"
SHELL_TOKEN = "token-of-the-shell-0123456789"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    edit_env(tmp_path, HF_TOKEN=TOKEN, DFLASH_API_KEYS=",".join(FURTHER_KEYS))
    deployment = Deployment(tmp_path)
    with deployment.env_file.open("a") as env:
        env.write("# the key of last year: an-old-key-in-a-comment\nNCCL_DEBUG=INFO\n")
    deployment.last_env_file.write_text(f"VLLM_API_KEY={OLD_KEY}\n")
    key = deployment.key.reveal()
    log = [
        "dflash: vLLM 0.32.0: vllm serve /models/target",
        f"a key {key}, a token {TOKEN}, an older key {OLD_KEY} and {SHELL_TOKEN}",
        *FURTHER_KEYS,
        *(base64.b64encode(f"{before}{key}:x".encode()).decode() for before in ("", "u", "us", "user:")),
        base64.b64encode(f"token={TOKEN}".encode()).decode(),
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    deployment.make_state()
    for name in ("engine.log", "engine.log.1"):
        (deployment.state / name).write_text("\n".join(log) + "\n")
    deployment.override_file.write_text(f"services: {{engine: {{environment: {{KEY: {key}}}}}}}\n")
    return deployment


def members(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        found = {}
        for member in archive.getmembers():
            assert member.mode == 0o600
            content = archive.extractfile(member)
            assert content is not None
            found[member.name.partition("/")[2]] = content.read().decode()
        return found


def test_it_holds_what_a_report_needs(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    ran = dflash("logs", "--bundle", str(file), at=tmp_path, environment=NOWHERE).succeeded()
    assert str(file) in ran.out
    found = members(file)
    assert set(found) >= {"engine.log", "plan.json", "doctor.json", "settings.env", "compose.yaml", "versions.json"}
    assert json.loads(found["plan.json"])["data"]["profile"] == "cpu"
    assert json.loads(found["doctor.json"])["data"]["checks"]
    assert json.loads(found["diagnosis.json"])["failure"]["id"] == "gpu-out-of-memory"
    assert "torch.OutOfMemoryError" in found["engine.log"]
    assert "NCCL_DEBUG=INFO" in found["settings.env"]
    assert "VLLM_API_KEY=[redacted]" in found["settings.env"]
    assert json.loads(found["versions.json"])["dflash-deploy"]
    assert found["dflash.lock"] == "there is none\n"


def test_no_member_holds_a_secret(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    dflash("logs", "--bundle", str(file), at=tmp_path, environment={**NOWHERE, "HF_TOKEN": SHELL_TOKEN}).succeeded()
    found = members(file)
    for secret in (deployment.key.reveal(), TOKEN, OLD_KEY, SHELL_TOKEN, *FURTHER_KEYS, "an-old-key-in-a-comment"):
        # of base64 the middle part is the same whatever stands around, but for where it begins among three bytes
        hidden = [base64.b64encode(b"\0" * n + secret.encode()).decode()[4:-4] for n in range(3)]
        for name, text in found.items():
            assert secret not in text, name
            assert not any(part in text for part in hidden), name
    assert found["engine.log"].count("[redacted]") == 4 + 2 + 5


def test_it_is_made_where_the_plan_cannot_be(deployment: Deployment, tmp_path: Path) -> None:
    edit_env(tmp_path, MAX_NUM_SEQS="many")
    file = tmp_path / "report.tar.gz"
    dflash("logs", "--bundle", str(file), at=tmp_path, environment=NOWHERE).succeeded()
    document = json.loads(members(file)["plan.json"])
    assert document["status"] == "failed"
    assert "MAX_NUM_SEQS" in document["error"]["message"]


def test_without_a_name_it_is_in_the_current_directory(deployment: Deployment, tmp_path: Path) -> None:
    dflash("logs", "--bundle", at=tmp_path, environment=NOWHERE).succeeded()
    (file,) = tmp_path.glob("*.tar.gz")
    assert file.name.startswith(deployment.project_name)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_kept(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    ran = dflash("logs", "--bundle", "mine", at=tmp_path, environment=NOWHERE)
    assert ran.code is ExitCode.USAGE
    assert (tmp_path / "mine").read_text() == "mine"
    assert dflash("logs", "mine", at=tmp_path).code is ExitCode.USAGE


def test_what_a_killed_bundle_left_is_removed_by_the_next_one(deployment: Deployment, tmp_path: Path) -> None:
    left = tmp_path / f".{deployment.project_name}-20260101-000000.tar.gz.0a1b2c3d"
    mine = tmp_path / ".another-20260101-000000.tar.gz.0a1b2c3d"
    for file in (left, mine):
        file.write_bytes(b"half of it")
        os.utime(file, (0, 0))
    dflash("logs", "--bundle", at=tmp_path, environment=NOWHERE).succeeded()
    assert not left.exists()
    assert mine.exists()


def test_it_is_private_from_its_first_byte_on(tmp_path: Path) -> None:
    file, seen = tmp_path / "x.tar.gz", list[int]()

    class Watched(Mapping[str, str]):
        def __iter__(self) -> Iterator[str]:
            # until it is complete it has a temporary name
            seen.extend(one.stat().st_mode & 0o777 for one in tmp_path.iterdir())
            yield "a"

        def __len__(self) -> int:
            return 1

        def __getitem__(self, name: str) -> str:
            return "text"

    before = os.umask(0)
    try:
        write_archive(file, Watched())
    finally:
        os.umask(before)
    assert [*seen, file.stat().st_mode & 0o777] == [0o600, 0o600]
    assert members(file) == {"a": "text"}


@pytest.mark.parametrize("damaged", ['VLLM_API_KEY="{}', "VLLM_API_KEY: {}", "vllm_api_key={}", "VLLM_API_KEYS={}"])
def test_a_key_whose_line_cannot_be_read_is_not_shown(deployment: Deployment, tmp_path: Path, damaged: str) -> None:
    key = deployment.key.reveal()
    text = deployment.env_file.read_text()
    deployment.env_file.write_text(text.replace(f"VLLM_API_KEY={key}", damaged.format(key)))
    assert key not in dflash("logs", at=tmp_path, environment=NOWHERE).succeeded().out
    file = tmp_path / "report.tar.gz"
    dflash("logs", "--bundle", str(file), at=tmp_path, environment=NOWHERE).succeeded()
    for name, member in members(file).items():
        assert key not in member, name


def test_a_password_in_an_address_is_not_shown(deployment: Deployment, tmp_path: Path) -> None:
    address = "http://bob:passphrase@127.0.0.1:9"
    deployment.override_file.write_text(f"services: {{engine: {{environment: {{HTTPS_PROXY: {address}}}}}}}\n")
    with deployment.env_file.open("a") as env:
        env.write(f"HF_ENDPOINT={address}\n")
    with (deployment.state / "engine.log").open("a") as log:
        log.write(f"downloads from {address}\n")
    file = tmp_path / "report.tar.gz"
    dflash("logs", "--bundle", str(file), at=tmp_path, environment=NOWHERE).succeeded()
    for name, member in members(file).items():
        assert "passphrase" not in member, name
    for command in (["logs"], ["pull"]):
        ran = dflash(*command, at=tmp_path, environment={**NOWHERE, "HF_ENDPOINT": address})
        assert "passphrase" not in ran.out + ran.err, command


def test_a_report_to_paste_has_what_an_issue_needs_and_no_secret(deployment: Deployment) -> None:
    secrets = {**NOWHERE, "MY_TOKEN": SHELL_TOKEN}
    ran = dflash("doctor", "--report", at=deployment.directory, environment=secrets).succeeded()
    titles = ("versions", "machine", "plan", "doctor", "settings", "last failure")
    assert all(f"**{title}**" in ran.out for title in titles)
    assert "cpu, tiny" in ran.out
    assert "out-of-memory" in ran.out
    assert "DFLASH_PROFILE=cpu" in ran.out
    for secret in (deployment.key.reveal(), TOKEN, OLD_KEY, SHELL_TOKEN, *FURTHER_KEYS, str(Path.home())):
        assert secret not in ran.out


def test_a_report_to_paste_needs_no_deployment(tmp_path: Path) -> None:
    ran = dflash("doctor", "--report", at=tmp_path, environment=NOWHERE).succeeded()
    assert "**plan**" in ran.out
    assert "**settings**" not in ran.out
