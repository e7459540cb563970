"""Plans, deployments and subjects as small as a check needs them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dflash_deploy.catalog.hardware import Match
from dflash_deploy.catalog.models import Weights
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.host.ask import ContainerEngine
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.settings import Settings
from tests.support.machines import DOCKER, GIB, machine

H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", 81559 * 2**20, "580.65.06", free=81000 * 2**20)
NVIDIA_DOCKER = replace(DOCKER, gpu_access="runtime", architecture="x86_64", root="/nowhere/docker")

BASE = SimpleNamespace(tag="vllm/vllm-openai:v0.33.0", seen=True, source="")


def a_plan(
    *,
    runtime: str = "compose",
    cpu: bool = False,
    unified: bool = False,
    gpus: int = 1,
    driver: str | None = "580",
    family: str = "vllm",
    findings: tuple[Any, ...] = (),
    repos: bool = True,
    gated: bool = False,
    models: Path = Path("/nowhere/models"),
    **values: str,
) -> Plan:
    """What the checks ask of a plan, and nothing else of it."""
    settings = {
        "DFLASH_BIND": "127.0.0.1",
        "DFLASH_PORT": "8000",
        "DFLASH_IMAGE": "dflash-deploy/vllm:0.33.0",
        "DFLASH_BASE_IMAGE": BASE.tag,
        "MODEL_HOST_PATH": str(models / "target"),
        "DRAFTER_HOST_PATH": str(models / "drafter"),
    }
    bundled = None if repos else "models/tiny/target"
    target = Weights(bytes=20 * GIB, repo="ada/target" if repos else None, bundled=bundled)
    drafter = Weights(bytes=3 * GIB, repo="ada/drafter" if repos else None, bundled=bundled, gated=gated)
    hardware = SimpleNamespace(driver=driver, unified=unified, memory_gib=80, most_utilisation=0.95, system_gib=24)
    match = Match(gpus=0 if cpu else gpus, names=["H100 80GB HBM3", "RTX 3090", "GB10"])
    written = {**settings, **values}
    plan = SimpleNamespace(
        profile=SimpleNamespace(name="h100", title="one H100", hardware=hardware, match=match, gpus=match.gpus),
        pair=SimpleNamespace(name="pair", target=target, drafter=drafter),
        engine=SimpleNamespace(
            name="vllm-0.33",
            engine=family,
            kind=ENGINES[family],
            driver="575",
            older_drivers=None,
            cpu=cpu,
            native="vllm",
            base_images={"x86_64": BASE, "aarch64": BASE},
        ),
        runtime=runtime,
        drafting=True,
        values=written,
        settings=Settings(written),
        findings=findings,
    )
    return cast(Plan, plan)


def a_machine(*gpus: Gpu, engine: ContainerEngine | None = NVIDIA_DOCKER) -> HostFacts:
    """A machine with a container engine, and with an H100 unless other GPUs are named."""
    return machine(*(gpus or (H100,)), container_engine=engine, memory=120 * GIB)


def a_subject(plan: Plan | None = None, facts: HostFacts | None = None, **more: Any) -> DoctorContext:
    """A subject; what is not named is as good as it can be."""
    return DoctorContext(facts or a_machine(), plan or a_plan(), **more)


def a_deployment(directory: Path, **values: str) -> Deployment:
    """A directory with an `.env` of mode 0600."""
    env = directory / ".env"
    lines = {"VLLM_API_KEY": "a-key-of-sixteen-and-more", **values}
    env.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    env.chmod(0o600)
    return Deployment(directory)


def whole_weights(models: Path) -> Path:
    """A target and a drafter, small but whole."""
    for role in ("target", "drafter"):
        (models / role).mkdir(parents=True)
        (models / role / "config.json").write_text("{}")
        # the length of a header, the header: no tensors
        (models / role / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    return models


def by_name(look: Callable[..., Iterator[Check]], subject: DoctorContext) -> dict[str, Check]:
    """The checks that one look yields."""
    return {check.name: check for check in look(subject, subject.plan)}


def only(look: Callable[..., Iterator[Check]], subject: DoctorContext) -> Check:
    """The one check that one look yields. It says what was seen, and what to do where it is not ok."""
    (check,) = look(subject, subject.plan)
    assert check.saw
    assert bool(check.fix) or check.status in {"ok", "skipped"}
    return check
