"""A result that can be published: a figure enters it only if its field is listed here and its text has the right form.

Host names, API keys, paths, prompts and names of users have no field. A text that is not a known name is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dflash_deploy import __version__
from dflash_deploy.bench.figures import SIZES
from dflash_deploy.bench.workload import DATASETS, OWN, PACKAGED
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.intake.documents import Digest, Milliseconds
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lock import Lock

LARGEST_SHARED: Final = 2**18  # bytes of the largest shared file

# The name of every workload that does not come with the package: a file's name may say more.
OWN_PROMPTS = "own prompts"

# The values of settings that are shared: numbers, schedules of drafts, switches, attention backends, quantizations.
_VALUE = (
    r"^(\d{1,12}(\.\d{1,6})?|(\d{1,5}-\d{1,5}:\d{1,3},?){1,16}|on|off|auto|FLASH_ATTN|FLASHINFER|TRITON_ATTN"
    r"|(fp|bf|bfloat|q|nvfp)\d{1,2}(_[a-z0-9]{1,6}){0,2})$"
)

_SETTINGS = (
    *SIZES,
    Settings.data_parallel_size,
    Settings.tensor_parallel_size,
    Settings.nodes,
    Settings.quantization,
    Settings.kv_cache_dtype,
    Settings.attention_backend,
    Settings.enforce_eager,
)

CatalogName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$|^$")]
Figure = Annotated[float, Field(ge=0, lt=1e15)]
OptionalDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$|^$")]
_GPU, _CAPABILITY, _DRIVER = (
    r"^(NVIDIA|Tesla|Quadro) [A-Za-z0-9 ()+-]{1,60}$",
    r"^(\d{1,2}\.\d)?$",
    r"^(\d{1,4}(\.\d{1,4}){1,2})?$",
)
# Versions of packages: a private build's own words are left out.
_VERSION = r"^\d{1,4}(\.\d{1,5}){0,3}((a|b|rc|\.?post|\.?dev)\d{1,6}){0,2}(\+(cpu|cu\d{2,3}|g[0-9a-f]{6,12}))?$"
GpuName = Annotated[str, Field(pattern=_GPU)]


class SharedPart(BaseModel):
    """A part of a shared result, which refuses keys that it does not know."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class SharedMachine(SharedPart):
    """GPUs, GiB of memory of each, compute capability, driver, and processor threads."""

    gpus: Annotated[list[GpuName], Field(max_length=16)] = []
    memory_gib: Annotated[float, Field(ge=0, le=4096)] = 0
    compute_capability: Annotated[str, Field(pattern=_CAPABILITY)] = ""
    driver: Annotated[str, Field(pattern=_DRIVER)] = ""
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None


class SharedRow(SharedPart):
    """One workload at one concurrency. Times are medians in milliseconds, rates those of all requests together."""

    workload: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 .-]{0,39}$")]
    concurrency: Annotated[int, Field(ge=1, le=65536)]
    drafter: bool | None
    mtp: bool = False
    draft_tokens: Annotated[int, Field(ge=0, le=1024)] | None = None
    tokens_per_s: Figure
    speedup: Figure | None = None
    requests: Annotated[int, Field(ge=0, lt=2**31)]
    failed: Annotated[int, Field(ge=0, lt=2**31)]
    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    acceptance_length: Annotated[float, Field(ge=1, le=1025)] | None = None


StepState = Literal["passed", "failed", "timed-out", "rehearsed", "skipped"]


class SharedStep(SharedPart):
    """A step of a proof: how it ended, seconds, SHA-256 of its log, and what it measured."""

    name: CatalogName
    state: StepState
    seconds: Annotated[float, Field(ge=0, le=86400)]
    log: OptionalDigest = ""
    model: CatalogName = ""
    figures: Annotated[dict[CatalogName, Figure], Field(max_length=40)] = {}
    rows: Annotated[list[SharedRow], Field(max_length=200)] = []


class SharedResult(SharedPart):
    """A run of `bench` (rows) or of a proof (steps), with what identifies it. Empty texts were unknown, or not public.

    `weights` has the SHA-256 over the locked files of target and drafter, `image` the digest of the engine's image,
    `versions` has Python packages.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    command: Literal["share"]
    made_by: Literal["bench", "proof"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+[a-z0-9.+]{0,20}$")]
    date: Annotated[str, Field(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]
    machine: SharedMachine
    profile: CatalogName = ""
    model: CatalogName = ""
    engine: CatalogName = ""
    runtime: Literal["compose", "native", ""] = ""
    image: OptionalDigest = ""
    weights: Annotated[dict[Literal["target", "drafter"], Digest], Field(max_length=2)] = {}
    settings: Annotated[dict[str, Annotated[str, Field(pattern=_VALUE)]], Field(max_length=40)] = {}
    versions: Annotated[dict[CatalogName, Annotated[str, Field(pattern=_VERSION)]], Field(max_length=20)] = {}
    rows: Annotated[list[SharedRow], Field(max_length=1000)] = []
    steps: Annotated[list[SharedStep], Field(max_length=60)] = []

    def text(self) -> str:
        """The file's content, which ends with a line break."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True, indent=1) + "\n"


def machine_of(gpus: Sequence[Gpu], threads: int | None) -> SharedMachine:
    """The public facts about a machine."""
    if not gpus:
        return SharedMachine(threads=threads)
    first = gpus[0]
    return SharedMachine(
        gpus=[gpu.name for gpu in gpus if re.fullmatch(_GPU, gpu.name)],
        memory_gib=round((first.memory or 0) / 2**30, 1),
        compute_capability=first.compute_capability if re.fullmatch(_CAPABILITY, first.compute_capability) else "",
        driver=first.driver if re.fullmatch(_DRIVER, first.driver) else "",
        threads=threads,
    )


def shared_rows(rows: Sequence[Mapping[str, Any]]) -> list[SharedRow]:
    """The rows of `bench --json` without what they quote of prompts, answers and errors."""
    fields = SharedRow.model_fields.keys() - {"workload", "ttft_ms", "tpot_ms"}
    return [
        SharedRow(
            workload=row["workload"] if row["workload"] in {*PACKAGED, OWN, *DATASETS} else OWN_PROMPTS,
            **{name: row[name] for name in fields},
            **{name: row[name] and row[name]["p50"] for name in ("ttft_ms", "tpot_ms")},
        )
        for row in rows
    ]


def digests(lock: Lock | None) -> dict[str, str]:
    """For each locked model the SHA-256 over the paths, sizes and digests of its files, without the repository."""
    return {role: _digest(model.files) for role, model in lock.models.items()} if lock else {}


def _digest(files: Sequence[Any]) -> str:
    return hashlib.sha256(repr(sorted(asdict(file).items() for file in files)).encode()).hexdigest()


def public_settings(values: Mapping[str, str]) -> dict[str, str]:
    """The settings that are numbers, switches and names of this project."""
    return {field.name: text for field in _SETTINGS if re.fullmatch(_VALUE, text := values.get(field.name, ""))}


def share(
    made_by: Literal["bench", "proof"],
    catalog: Catalog,
    machine: SharedMachine,
    *,
    named: Mapping[str, str] = {},
    values: Mapping[str, str] = {},
    image: str = "",
    lock: Lock | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    steps: Sequence[SharedStep] = (),
    versions: Mapping[str, str] = {},
) -> SharedResult:
    """The public half of a result. `named` has `profile`, `model`, `engine` and `runtime`; `image` may have a tag."""
    public = {"profile": catalog.profiles, "model": catalog.pairs, "engine": catalog.engines}
    names = {kind: named.get(kind, "") for kind, known in public.items() if named.get(kind) in known}
    digest = re.search(r"sha256:([0-9a-f]{64})$", image)
    return SharedResult.model_validate(
        {
            "schema": 1,
            "command": "share",
            "made_by": made_by,
            "version": __version__,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": machine,
            **names,
            "runtime": named.get("runtime", ""),
            "image": digest[1] if digest else "",
            "weights": digests(lock),
            "settings": public_settings(values),
            "versions": {name: text for name, text in versions.items() if re.fullmatch(_VERSION, text)},
            "rows": shared_rows(rows),
            "steps": list(steps),
        }
    )
