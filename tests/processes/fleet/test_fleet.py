"""`fleet` with an `ssh` that runs the command in a shell of this machine, as a real one does on the host.

Real SSH servers are in tests/fleet. Each host is a home directory, whose `dflash-deploy` is a script.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash
from tests.support.commands import wait_until

SSH = """\
#!/bin/sh
# like ssh: options, --, the destination, and one text for the user's shell, in the home directory
echo "$@" >>"$LAB/argv"
while [ "$1" != -- ]; do shift; done
[ "$2" = unreachable ] && { echo "ssh: connect to host unreachable port 22: No route to host" >&2; exit 255; }
export HOME="$LAB/$2"
cd "$HOME"
exec sh -c "$3"
"""

DEPLOY = """\
#!/bin/sh
echo "$@" >>"$HOME/called"
. "$HOME/answers"
"""

DONE = """
case $1 in
init) mkdir -p dflash; printf 'VLLM_API_KEY=%s\\nMAX_NUM_SEQS=4\\n' "$HOME" >dflash/.env;;
logs) printf 'one\\ntwo\\n'; exit 0;;
esac
echo "weights are there" >&2
echo '{"schema": 1, "data": {"state": "ready", "endpoint": "http://127.0.0.1:8000/v1", "checks": [{}, {}]}}'
"""
FAILED = """
echo '{"schema": 1, "data": {}, "error": {"message": "the engine ended", "hint": "read the log"}}'
exit 5
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with `fleet.yaml` for the hosts a and b."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    for name in ("a", "b"):
        answers(tmp_path, name, DONE)
    write(tmp_path, "{name: a, ssh: a, rank: 0}", "{name: b, ssh: b, rank: 1}")
    return tmp_path


def answers(place: Path, name: str, script: str) -> None:
    """What `dflash-deploy` does on a host."""
    program = place / name / ".local" / "bin" / "dflash-deploy"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(DEPLOY)
    program.chmod(0o755)
    (place / name / "answers").write_text(script)


def write(place: Path, *hosts: str) -> None:
    lines = "\n".join(f"- {host}" for host in hosts)
    (place / "fleet.yaml").write_text(f"master_addr: 10.0.0.1\nhosts:\n{lines}\n")


def environment(place: Path) -> dict[str, str]:
    return {"PATH": f"{place / 'bin'}:/usr/bin:/bin", "LAB": str(place)}


def fleet(place: Path, *words: str) -> Ran:
    return dflash("fleet", *words, at=place, environment=environment(place))


def test_a_row_for_each_host_and_its_progress_with_its_name(place: Path) -> None:
    ran = fleet(place, "up", "--json").succeeded()
    rows = ran.document["data"]["hosts"]
    assert [(row["name"], row["state"], row["exit_code"], row["message"]) for row in rows] == [
        ("a", "ready", 0, "2 checks passed"),
        ("b", "ready", 0, "2 checks passed"),
    ]
    assert {"a | weights are there", "b | weights are there"} <= set(ran.err.splitlines())
    # ranks wait for each other, so the weights come first
    assert (place / "a" / "called").read_text() == "pull --dir dflash --json\nup --dir dflash --json\n"
    shown = fleet(place, "status").succeeded().out
    assert "http://127.0.0.1:8000/v1" in shown
    assert (place / "b" / "called").read_text().endswith("status --dir dflash --json\n")


def test_init_writes_one_key_with_ranks_and_no_argument_has_it(place: Path) -> None:
    fleet(place, "init", "--json", "--", "--model", "a b").succeeded()
    words = "--dir dflash --json --yes --node-rank {} --master-addr 10.0.0.1 --model a b\n"
    for rank, name in enumerate(("a", "b")):
        assert (place / name / "called").read_text() == f"init {words.format(rank)}"
    files = [place / name / "dflash" / ".env" for name in ("a", "b")]
    one, other = (file.read_text() for file in files)
    assert one == other
    assert one.startswith("MAX_NUM_SEQS=4\nVLLM_API_KEY=")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    key = one.rpartition("=")[2].strip()
    assert len(key) > 40
    assert key not in (place / "argv").read_text()


def test_the_exit_code_is_the_worst_of_the_hosts(place: Path) -> None:
    answers(place, "b", FAILED)
    ran = fleet(place, "up", "--json")
    assert ran.code is ExitCode.NOT_READY
    assert [row["exit_code"] for row in ran.document["data"]["hosts"]] == [0, 5]
    assert ran.document["error"]["message"] == "b: the engine ended"
    assert ran.document["error"]["hint"] == "read the log"


@pytest.mark.parametrize(
    ("host", "said", "hint"),
    [
        ("unreachable", "No route to host", "`ssh unreachable true` must work"),
        ("empty", "dflash-deploy is not installed there", "pipx"),
    ],
)
def test_a_host_that_cannot_be_used_is_one_line_with_a_hint(place: Path, host: str, said: str, hint: str) -> None:
    (place / "empty").mkdir()
    write(place, "{name: a, ssh: a}", f"{{name: b, ssh: {host}}}")
    ran = fleet(place, "status")
    assert ran.code is ExitCode.PREFLIGHT
    assert f"error: b: {said}" in ran.err or said in ran.err
    assert hint in ran.err
    assert "ready" in ran.out


def test_output_that_is_no_document_is_a_failure(place: Path) -> None:
    answers(place, "b", "echo Welcome")
    ran = fleet(place, "down", "--json")
    assert ran.code is ExitCode.UNEXPECTED
    assert "b: its output" in ran.document["error"]["message"]


def test_logs_have_the_name_of_their_host(place: Path) -> None:
    ran = fleet(place, "logs", "--tail", "2").succeeded()
    assert sorted(ran.out.splitlines()) == ["a | one", "a | two", "b | one", "b | two"]


def test_only_rank_0_is_tested(place: Path) -> None:
    ran = fleet(place, "test", "--json").succeeded()
    assert [row["name"] for row in ran.document["data"]["hosts"]] == ["a"]
    assert not (place / "b" / "called").exists()


def test_without_ssh_it_is_said(place: Path) -> None:
    ran = dflash("fleet", "status", at=place, environment={"PATH": str(place)})
    assert ran.code is ExitCode.PREFLIGHT
    assert "`ssh` is not installed here" in ran.err


def test_ctrl_c_ends_every_ssh(place: Path) -> None:
    for name in ("a", "b"):
        # its input ends when it is followed
        answers(place, name, f"cat >/dev/null; echo $$ >{place}/{name}.pid; exec sleep 600")
    command = [sys.executable, "-m", "dflash_deploy", "fleet", "status"]
    variables = {**os.environ, **environment(place)}
    with subprocess.Popen(command, cwd=place, env=variables, stderr=subprocess.PIPE, text=True) as running:
        files = [place / f"{name}.pid" for name in ("a", "b")]
        assert wait_until(lambda: all(file.exists() and file.read_text() for file in files), 60)
        # only to the program: a terminal sends it to ssh too
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == ExitCode.INTERRUPTED
    pids = [int(file.read_text()) for file in files]
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)
