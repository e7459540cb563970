"""Bad input: one line, a hint, the right exit code, and nothing half-written. What `up` refuses: test_faults.py."""

from pathlib import Path

import pytest

from dflash_deploy.errors import BadInput, ExitCode
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path)
    return tmp_path


def refused(ran: Ran, code: ExitCode, *says: str) -> None:
    """One line that says what was seen, one that says what to do."""
    assert ran.code is code, ran.err
    error, hint = ran.err.strip().splitlines()[-2:]
    assert error.startswith("error: ")
    assert hint.startswith("  hint: ")
    assert "Traceback" not in ran.err
    for text in says:
        assert text in ran.err


def test_an_unknown_profile(tmp_path: Path) -> None:
    refused(
        dflash("init", "--profile", "dgx-sparc", at=tmp_path), ExitCode.USAGE, "dgx-sparc", "did you mean dgx-spark?"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_domain_without_containers(tmp_path: Path) -> None:
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--domain", "llm.example.com")
    refused(dflash("init", *told, at=tmp_path), ExitCode.USAGE, "DFLASH_GATEWAY=127.0.0.1:8000", "caddy run --config")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_pair(tmp_path: Path) -> None:
    refused(dflash("init", "--profile", "cpu", "--pair", "tinny", at=tmp_path), ExitCode.USAGE, "did you mean tiny?")
    assert list(tmp_path.iterdir()) == []


def test_a_deployment_is_not_written_over(deployment: Path) -> None:
    before = (deployment / ".env").read_bytes()
    refused(dflash("init", "--profile", "cpu", at=deployment), ExitCode.USAGE, "--force")
    assert (deployment / ".env").read_bytes() == before


@pytest.mark.parametrize("verb", ["up", "down", "status", "logs", "test", "render"])
def test_no_deployment_here(tmp_path: Path, verb: str) -> None:
    refused(dflash(verb, at=tmp_path), ExitCode.USAGE, "dflash-deploy init")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["status", "plan", "render"])
def test_a_typo_in_a_key(deployment: Path, verb: str) -> None:
    with (deployment / ".env").open("a") as env:
        env.write("MAX_MODEL_LENGTH=4096\n")
    refused(dflash(verb, at=deployment), ExitCode.USAGE, "MAX_MODEL_LENGTH", "did you mean MAX_MODEL_LEN?")


@pytest.mark.parametrize("verb", ["plan", "status", "test", "render"])
@pytest.mark.parametrize(
    ("name", "value"), [("MAX_NUM_SEQS", "many"), ("DFLASH_PORT", "http"), ("DFLASH_PORT", "70000")]
)
def test_a_value_of_the_wrong_kind(deployment: Path, verb: str, name: str, value: str) -> None:
    edit_env(deployment, **{name: value})
    refused(dflash(verb, at=deployment), ExitCode.USAGE, f"{name}={value}")


def test_no_target_at_all(deployment: Path) -> None:
    edit_env(deployment, MODEL_HOST_PATH="")
    refused(dflash("up", at=deployment), ExitCode.USAGE, "MODEL_HOST_PATH")


def test_an_empty_key(deployment: Path) -> None:
    edit_env(deployment, VLLM_API_KEY="")
    refused(dflash("up", at=deployment), ExitCode.USAGE, "VLLM_API_KEY")


@pytest.mark.parametrize("key", ["short", "with a blank in between", "ab#cdefghijklmnopq"])
def test_a_key_that_readers_of_env_would_not_agree_on(deployment: Path, key: str) -> None:
    edit_env(deployment, VLLM_API_KEY=f'"{key}"')
    refused(dflash("up", at=deployment), ExitCode.USAGE, "must have at least 16 characters")


@pytest.mark.parametrize("name", ["HF_HUB_TOKEN", "NVIDIA_API_KEY", "VLLM_SOME_SECRET"])
def test_a_secret_that_would_be_handed_over_in_the_open(deployment: Path, name: str) -> None:
    with (deployment / ".env").open("a") as env:
        env.write(f"{name}=abcdefghijkl\n")
    refused(dflash("plan", at=deployment), ExitCode.USAGE, name)


def test_a_home_that_nobody_has(deployment: Path) -> None:
    edit_env(deployment, MODEL_HOST_PATH="~nobody-of-that-name/x")
    refused(dflash("up", at=deployment), ExitCode.USAGE, "~nobody-of-that-name")


def test_a_value_that_cannot_be_written_down_leaves_no_trace(tmp_path: Path) -> None:
    ran = dflash("init", "--profile", "dgx-spark", "--models-dir", "/tmp/back\\slash", "--dir", "made", at=tmp_path)
    refused(ran, ExitCode.USAGE, "cannot be written to .env")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(dflash("init", "--profile", "cpu", "--dir", "file/below", at=tmp_path), ExitCode.USAGE, "--dir")


@pytest.mark.parametrize("verb", ["down", "logs"])
def test_a_slip_keeps_nobody_from_stopping_or_reading(deployment: Path, verb: str) -> None:
    with (deployment / ".env").open("a") as env:
        env.write("MAX_NUM_SEQ=3\n")
    edit_env(deployment, MODEL_HOST_PATH="")
    dflash(verb, at=deployment).succeeded()


@pytest.mark.parametrize("url", ["", "http://a..b", "http://box:99999", f"http://{'a' * 300}", "http://-a"])
def test_a_url_without_a_valid_host(url: str) -> None:
    with pytest.raises(BadInput, match="not a valid URL"):
        address_of(url)


@pytest.mark.parametrize("url", ["llm.example.com", "box:8000", "user:word@box:8000/v1"])
def test_a_url_without_its_beginning(url: str) -> None:
    with pytest.raises(BadInput, match="not a valid URL") as raised:
        address_of(url)
    assert raised.value.hint == "begin with http:// or https://, such as http://box:8000"


@pytest.mark.parametrize(
    "words",
    [
        ("test", "--url", ""),
        ("bench", "--url", ""),
        ("connect", "curl", "--url", ""),
        ("connect", "--url", "http://a..b"),
    ],
)
def test_a_url_that_is_given_is_never_left_out(deployment: Path, words: tuple[str, ...]) -> None:
    refused(dflash(*words, at=deployment), ExitCode.USAGE, "not a valid URL")


def test_an_empty_baseline_is_not_left_out(deployment: Path) -> None:
    refused(dflash("test", "--baseline-url", "", at=deployment), ExitCode.USAGE, "not a valid URL")
    refused(dflash("bench", "--baseline-url", "", at=deployment), ExitCode.USAGE, "not a valid URL")


@pytest.mark.parametrize(
    "url", ["http://box:8000", "https://b\u00fccher.example/v1", "http://[::1]:8000/v1/", "http://a_b.c"]
)
def test_a_url_with_a_valid_host(url: str) -> None:
    assert address_of(url) == url.rstrip("/").removesuffix("/v1")


@pytest.mark.parametrize("bind", ["a..b", "bad host", "\u00fcn\u00ef", "x" * 300, "http://box", "127.0.0.1:80"])
def test_an_address_to_listen_on_that_is_none(bind: str) -> None:
    with pytest.raises(Refused, match="is not a valid address"):
        Settings.dflash_bind.read({"DFLASH_BIND": bind})
    for good in ("127.0.0.1", "0.0.0.0", "::1", "localhost", "box_1.example.com", "fe80::1%eth0"):
        assert Settings.dflash_bind.read({"DFLASH_BIND": good}) == good


def test_a_control_character_in_a_setting_is_named_without_being_printed(deployment: Path) -> None:
    control = "\x1b[31m"
    edit_env(deployment, DFLASH_BIND=f"127.0.0.1{control}")
    for verb in ("plan", "status"):
        ran = dflash(verb, at=deployment)
        refused(ran, ExitCode.USAGE, "DFLASH_BIND", "is not a valid address")
        assert control not in ran.out + ran.err
    ran = dflash("doctor", at=deployment)
    refused(ran, ExitCode.PREFLIGHT, "checks failed")
    assert "please report" not in ran.out + ran.err


@pytest.mark.parametrize("verb", ["status", "connect"])
def test_a_key_that_no_request_can_contain(deployment: Path, verb: str) -> None:
    key = "schl\u00fcssel-mit-umlauten-und-lang-genug"
    edit_env(deployment, VLLM_API_KEY=key)
    ran = dflash(verb, at=deployment)
    refused(ran, ExitCode.USAGE, "VLLM_API_KEY")
    assert key not in ran.out + ran.err


def test_settings_that_would_end_badly(deployment: Path) -> None:
    edit_env(deployment, MAX_NUM_BATCHED_TOKENS="31")
    refused(dflash("up", at=deployment), ExitCode.PREFLIGHT, "MAX_NUM_BATCHED_TOKENS to 32 or more")


def test_as_json_an_error_is_a_document(tmp_path: Path) -> None:
    ran = dflash("init", "--profile", "nonesuch", "--json", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert ran.document["status"] == "failed"
    assert ran.document["error"]["code"] == ExitCode.USAGE
    assert ran.document["error"]["hint"]


@pytest.mark.parametrize("name", ["MAX_MODEL_LEN", "MAX_NUM_SEQS", "GPU_MEMORY_UTILIZATION", "DFLASH_PORT", "NODES"])
def test_a_blank_is_as_good_as_nothing(tmp_path: Path, name: str) -> None:
    initialise("--profile", "cpu", at=tmp_path)
    edit_env(tmp_path, **{name: "' '"})
    for verb in ("plan", "render", "doctor"):
        assert "unexpected" not in dflash(verb, at=tmp_path).err


@pytest.mark.parametrize("text", ["name: 2024-13-45\n", "name: [\n", "titel: x\n"])
def test_a_catalog_of_ones_own_that_is_wrong_is_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text(text)
    ran = dflash("profiles", "list", at=tmp_path, environment={"DFLASH_CATALOG": str(tmp_path)})
    assert ran.code is ExitCode.USAGE
    assert "mine.yaml" in ran.err
    (tmp_path / "profiles" / "mine.yaml").unlink()
    (tmp_path / "profiles" / "folder.yaml").mkdir()
    ran = dflash("profiles", "list", at=tmp_path, environment={"DFLASH_CATALOG": str(tmp_path)})
    assert ran.code is ExitCode.USAGE


@pytest.mark.parametrize("line", ["MAX_NUM_SEQS='4", "MAX_NUM_SEQS: 4"])
def test_a_line_that_cannot_be_parsed_is_named_and_the_engine_can_be_stopped(deployment: Path, line: str) -> None:
    before = (deployment / ".env").read_text()
    (deployment / ".env").write_text(f"{before}\n{line}\n")
    number = len(before.splitlines()) + 2
    for command in ("plan", "up", "render"):
        ran = dflash(command, at=deployment)
        assert ran.code is ExitCode.USAGE
        assert f".env: line {number} cannot be parsed" in ran.err
        assert "python-dotenv" not in ran.err
    dflash("down", at=deployment).succeeded()
    (deployment / ".env").write_text(before)
