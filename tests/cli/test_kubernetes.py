"""`export test` with the real kubectl, in front of a scripted API server and scripted engines."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, invoke
from tests.support.kube_api import NAMESPACE, ROUTER, KubeApi, KubePod, kube_api
from tests.support.manifests import kubectl
from tests.support.openai_server import KEY, Engine, serving

NAMES = ("dflash-a", "dflash-b", "dflash-c")


@contextmanager
def cluster(place: Path, *engines: Engine, routed: bool = True, **options: Any) -> Iterator[KubeApi]:
    """A cluster with a pod for each engine, and the router's in front of the first one."""
    with ExitStack() as stack:
        ports = [int(stack.enter_context(serving(engine)).rpartition(":")[2]) for engine in engines]
        pods = [KubePod(name, port) for name, port in zip(NAMES, ports, strict=False)]
        if routed:
            pods.append(KubePod("dflash-router-x", ports[0], ROUTER))
        yield stack.enter_context(kube_api(place, *pods, key=KEY, **options))


def run(api: KubeApi, place: Path, *options: str, **environment: str) -> Ran:
    path = f"{kubectl().parent}:/usr/bin:/bin"
    own = {"KUBECONFIG": str(api.config), "HOME": str(place), "PATH": path, "VLLM_API_KEY": "", **environment}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        return invoke("export", "test", NAMESPACE, *options)


def failed(ran: Ran) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in ran.document["data"]["checks"] if one["status"] == "failed"}


def test_each_pod_and_the_service_are_checked_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kubernetes lists the three pods on two pages
    monkeypatch.setattr("dflash_deploy.features.export.kube.PAGE", 2)
    with cluster(tmp_path, Engine(), Engine()) as api:
        ran = run(api, tmp_path, "--json").succeeded()
    data = ran.document["data"]
    names = [check["name"] for check in data["checks"]]
    for who in (*NAMES[:2], "service"):
        assert f"{who}: auth" in names
        assert f"{who}: text" in names
    assert "dflash-a: drafts" in names
    assert "service: drafts" not in names
    assert names[-4:] == ["same image", "same settings", "same answer", "alike"]
    assert data["acceptance_by_engine"].keys() == set(NAMES[:2])
    assert [path.count("continue=2") for path in api.asked if "limit=2" in path] == [0, 1]
    # the key comes from the Secret, and is in nothing that is shown
    assert [path for path in api.asked if "/secrets/dflash-keys" in path]
    assert KEY not in ran.out + ran.err


def test_a_replica_that_differs_is_named(tmp_path: Path) -> None:
    odd = Engine(program="def other(): pass # another program, of another model", accepted=(0.3, 0.1, 0.0))
    with cluster(tmp_path, Engine(), Engine(), odd) as api:
        api.pods[1] = replace(api.pods[1], settings="f" * 16)
        api.pods[2] = replace(api.pods[2], image="registry.example.com/vllm@sha256:" + "2" * 64, env=("EXTRA",))
        ran = run(api, tmp_path, "--json", "--only", "text,drafts")
    assert ran.code is ExitCode.SMOKE_TEST
    found = failed(ran)
    assert found["same image"]["got"].startswith("dflash-c ")
    assert "2" * 64 in found["same image"]["got"]
    assert "dflash-a" not in found["same image"]["got"]
    assert "dflash-b ffffffffffffffff-" in found["same settings"]["got"]
    assert "dflash-c 0123456789abcdef-" in found["same settings"]["got"]
    assert found["same answer"]["got"].startswith("dflash-c: token ")
    assert "dflash-c" in found["alike"]["hint"]
    assert "dflash-a" not in found["alike"]["hint"]
    assert all("kubectl delete pod --namespace vision POD" in found[name]["hint"] for name in ("same image", "alike"))


def test_a_pod_that_is_not_ready_is_named_and_the_others_are_checked(tmp_path: Path) -> None:
    with cluster(tmp_path, Engine(), Engine(), routed=False) as api:
        api.pods[1] = replace(api.pods[1], ready=False)
        ran = run(api, tmp_path, "--json", "--only", "text")
    assert ran.code is ExitCode.SMOKE_TEST
    found = failed(ran)
    assert list(found) == ["dflash-b: ready"]
    assert found["dflash-b: ready"]["got"] == "Pending, not ready"
    assert "service: text" in {check["name"] for check in ran.document["data"]["checks"]}


@pytest.mark.parametrize("source", ["environment", "file"])
def test_the_key_of_the_environment_or_a_file_is_used_if_the_secret_may_not_be_read(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    options = ("--key-file", str(tmp_path / "key")) if source == "file" else ()
    with cluster(tmp_path, Engine(), routed=False, readable=False) as api:
        given = {} if source == "file" else {"VLLM_API_KEY": KEY}
        run(api, tmp_path, "--only", "text", *options, **given).succeeded()
        ran = run(api, tmp_path, "--only", "text")
    assert ran.code is ExitCode.USAGE
    assert "may not read the Secret dflash-keys" in " ".join(ran.err.split())
    assert "--key-file FILE" in " ".join(ran.err.split())


def one_line(ran: Ran, code: ExitCode, said: str) -> None:
    assert ran.code is code, ran.err
    assert said in " ".join(ran.err.split())
    assert "hint:" in ran.err
    assert "Traceback" not in ran.err
    assert KEY not in ran.out + ran.err


def test_what_kubernetes_refuses_is_one_line(tmp_path: Path) -> None:
    with cluster(tmp_path, Engine(), routed=False) as api:
        one_line(run(api, tmp_path, PATH="/nowhere"), ExitCode.PREFLIGHT, "kubectl is not installed")
        one_line(run(api, tmp_path, "--name", "other"), ExitCode.NOT_READY, "vision has no pods of other")
        api.forwards = False
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "port-forward to pod/dflash-a ended: ")
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "`kubectl get pods --namespace vision`")
        api.forwards, api.pods[0].port = True, None
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "port-forward to pod/dflash-a ended: ")
        api.pods[0] = replace(api.pods[0], ready=False)
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "no engine of dflash in vision is ready: dflash-a Pending")
        api.pods.append(KubePod("other-a", None, instance="other"))
        one_line(run(api, tmp_path), ExitCode.USAGE, "vision has several deployments: dflash, other")
        api.pods.clear()
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "vision has no pods of dflash-deploy")
    one_line(run(api, tmp_path), ExitCode.PREFLIGHT, "kubectl: ")


def test_a_forward_that_ends_during_the_checks_is_one_line(tmp_path: Path) -> None:
    with cluster(tmp_path, Engine(), routed=False, ends_after=2) as api:
        one_line(run(api, tmp_path), ExitCode.NOT_READY, "port-forward to pod/dflash-a ended: error: lost connection")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--only", "nothing"), "`nothing` is not a check"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    one_line(run(KubeApi(), tmp_path, *options), ExitCode.USAGE, said)
    one_line(invoke("export", "test", "A B"), ExitCode.USAGE, "is not a valid namespace")
