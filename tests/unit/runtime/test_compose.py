"""Compose calls are data, and all of them name the same files."""

from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.runtime.compose import compose_command, compose_environment, cursor_of, parse_stamped
from dflash_deploy.serve.settings import Settings


def test_every_call_names_project_files_and_env(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    assert compose_command(deployment, "up", "--detach") == [
        *("docker", "compose"),
        *("--project-directory", str(tmp_path)),
        *("--project-name", deployment.project_name),
        *("--env-file", str(tmp_path / ".env")),
        *("-f", str(tmp_path / "compose.yaml")),
        *("up", "--detach"),
    ]


def test_the_users_override_comes_last(tmp_path: Path) -> None:
    (tmp_path / "compose.override.yaml").write_text("services: {}\n")
    command = compose_command(Deployment(tmp_path), "down")
    assert command[-3:] == ["-f", str(tmp_path / "compose.override.yaml"), "down"]


def test_exported_settings_do_not_reach_compose() -> None:
    # to Compose a variable of the shell counts more than the same line of .env
    environment = {"PATH": "/bin", Settings.max_model_len.name: "1", "VLLM_API_KEY": "exported", "NCCL_DEBUG": "INFO"}
    assert compose_environment(environment, {"NCCL_DEBUG"}) == {"PATH": "/bin"}
    assert compose_environment(environment, ()) == {"PATH": "/bin", "NCCL_DEBUG": "INFO"}


def test_a_progress_bar_is_one_line() -> None:
    # vLLM writes the shards it has loaded over each other
    raw = (
        "2026-11-21T11:45:50.123456789Z \rLoading safetensors:   0% 0/1\rLoading safetensors: 100% 1/1\n"
        "2026-11-21T11:45:51.000000001Z plain\r\n"
    )
    assert parse_stamped(raw) == [
        ("2026-11-21T11:45:50.123456789Z", "Loading safetensors: 100% 1/1"),
        ("2026-11-21T11:45:51.000000001Z", "plain"),
    ]


def test_the_start_of_a_container_is_compared_with_time_stamps_of_its_log() -> None:
    # Docker's API leaves out zeros at the end, its log does not
    assert cursor_of("2026-11-21T11:45:50.1234Z") == "2026-11-21T11:45:50.123400000Z"
    assert cursor_of("2026-11-21T11:45:50Z") == "2026-11-21T11:45:50.000000000Z"
    assert cursor_of("2026-11-21T11:45:50.123456789Z") == "2026-11-21T11:45:50.123456789Z"
    assert cursor_of("0001-01-01T00:00:00Z") < "2026-11-21T11:45:50.000000000Z"
