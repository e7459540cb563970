"""What can be published of a run: figures and known names. Nothing that was planted survives."""

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.gpu import Gpu, gpus_of, parse
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.result import Choice
from dflash_deploy.redact import generate_key
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.weights.lock import Lock, LockedFile, LockedModel
from tests.support.machines import RECORDED
from tests.support.measured import rows
from tests.support.recorded import recorded
from tools.proof.share import LARGEST_SHARED, SharedResult, machine_of, share, shared_rows

FIELDS = ("index", "name", "compute_cap", "memory.total", "memory.free", "driver_version", "mig.mode.current")
CATALOG = load_catalog()


def h100() -> tuple[Gpu, ...]:
    return gpus_of(parse(recorded("nvidia-smi", "h100.txt"), FIELDS))


def test_no_planted_secret_host_name_path_or_prompt_survives() -> None:
    secret = generate_key().reveal()
    planted = [secret, "hf_abcdefghijklmnopqrstuvwx", "box17.corp.example", "/home/alice/models", "alice", "who?"]
    everywhere = " ".join(planted)
    edited = {
        "VLLM_API_KEY": secret,
        "EXTRA_ARGS": f"--threads 1 --override-kv note=str:{secret}",
        "SERVED_MODEL_NAME": "box17.corp.example",
        "MODEL_HOST_PATH": "/home/alice/models",
    }
    plan = plan_deployment(RECORDED["cpu"], Choice(profile="cpu", engine="llamacpp", edited=edited), CATALOG)
    found = [replace(row, workload=everywhere, problem=everywhere).document() for row in rows()]
    named = {"profile": plan.profile.name, "model": plan.pair.name, "engine": plan.engine.name, "runtime": plan.runtime}
    machine = machine_of(h100(), 16)
    text = share("bench", CATALOG, machine, named=named, values=dict(plan.values), rows=found).text()
    assert [one for one in [*planted, socket.gethostname()] if one in text] == []
    result = parse_document(text, SharedResult)
    assert (result.profile, result.model, result.engine) == ("cpu", "tiny-gguf", "llamacpp-cpu-b11549")
    assert [row.tokens_per_s for row in result.rows] == [row.tokens_per_s for row in rows()]
    assert {row.workload for row in result.rows} == {"own prompts"}
    assert result.settings["DFLASH_NUM_SPEC_TOKENS"] == plan.values["DFLASH_NUM_SPEC_TOKENS"]


def test_each_field_refuses_what_was_planted() -> None:
    """Also a file that somebody wrote by hand."""
    good = json.loads(share("bench", CATALOG, machine_of(h100(), 16), rows=[row.document() for row in rows()]).text())
    parse_document(json.dumps(good), SharedResult)
    planted: list[tuple[dict[str, Any], str]] = [
        (good | {"host": "box17"}, "host"),
        (good | {"image": "registry.corp.example/vllm:1"}, "image"),
        (good | {"profile": "/home/alice"}, "profile"),
        (good | {"settings": {"MODEL_FILE": "/home/alice/x.gguf"}}, "settings"),
        (good | {"machine": {**good["machine"], "gpus": ["box17.corp.example"]}}, "gpus"),
        (good | {"rows": [good["rows"][0] | {"workload": "/home/alice/prompts.jsonl"}]}, "workload"),
        (good | {"rows": [good["rows"][0] | {"problem": "401"}]}, "problem"),
        (good | {"rows": good["rows"] * 90}, "rows"),
    ]
    for document, place in planted:
        with pytest.raises(Invalid, match=place):
            parse_document(json.dumps(document), SharedResult, limit=LARGEST_SHARED * 8)


def test_it_identifies_the_run() -> None:
    files = (LockedFile("model.safetensors", 5, sha256="0" * 64),)
    lock = Lock({"target": LockedModel("alice/private", "c" * 40, files)})
    image = "registry.corp.example/vllm:1@sha256:" + "a" * 64
    named = {"profile": "h100", "model": "alice-own-model", "engine": "vllm-0.33", "runtime": "compose"}
    result = share("bench", CATALOG, machine_of(h100(), 16), named=named, image=image, lock=lock)
    assert (result.image, result.profile, result.model) == ("a" * 64, "h100", "")
    assert result.machine.gpus[0].startswith("NVIDIA H100")
    assert result.machine.driver
    other = Lock({"target": replace(lock.models["target"], files=(replace(files[0], size=6),))})
    moved = Lock({"target": replace(lock.models["target"], repo="bob/copy")})
    weights = [share("bench", CATALOG, machine_of((), 2), lock=one).weights for one in (lock, moved, other)]
    assert weights[0] == weights[1] != weights[2]
    assert "alice" not in result.text()


def test_times_are_medians() -> None:
    document: dict[str, Any] = rows()[0].document()
    (row,) = shared_rows([document])
    assert row.ttft_ms == document["ttft_ms"]["p50"]
