"""What a proof decides from facts: which steps can run, with which arguments, and what proves them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.document import redacted
from dflash_deploy.host.gpu import FIELDS, PROCESS_FIELDS, GpuProcess, gpus_of, parse
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES
from tests.support.measured import rows
from tests.support.recorded import recorded
from tools.proof import page, shapes
from tools.proof.decide import (
    LOADER_ERROR,
    Command,
    Here,
    Outcome,
    beside_plan,
    distance,
    figures_in_log,
    judged,
    obstacle,
    shape_command,
    steps,
    unknown_options,
)
from tools.proof.private import cleaner
from tools.proof.share import SharedMachine, SharedResult
from tools.reference.results import read
from tools.reference.unproven import PROVED_BY

STEPS = {step.name: step for step in steps()}
H100 = recorded("nvidia-smi", "h100.txt")
CATALOG = load_catalog()


def here(text: str = H100, *, others: tuple[GpuProcess, ...] = (), problem: str = "") -> Here:
    return Here(gpus_of(parse(text, FIELDS)), problem, others, engine="vllm")


def changed(**cells: str) -> str:
    (row,) = parse(H100, FIELDS)
    return ", ".join({**row, **{name.replace("_", ".", 1): text for name, text in cells.items()}}.values())


def test_every_step_runs_on_a_free_h100() -> None:
    free = changed(memory_total="81559", memory_free="81000")
    assert {name: why for name, step in STEPS.items() if (why := obstacle(step, here(free)))} == {}
    assert list(STEPS)[:3] == ["machine", "tiny", "lossless"]


@pytest.mark.parametrize(
    ("step", "machine", "why"),
    [
        ("sleep", here(""), "no GPU"),
        ("tiny", here("", problem="nvidia-smi did not respond within 20 s: the driver hangs"), "the driver hangs"),
        ("shape-fp8", here(changed(memory_total="4096", memory_free="4000")), "has 4 GiB; the step needs 60"),
        ("tiny", here("0, NVIDIA H100, 9.0, 81559, 81000, 535.104.05, Disabled"), "driver 535.104.05 is too old"),
        ("nvfp4", Here(engine="vllm", installed=False, docker=True), "not in a container"),
        ("tiny", Here(engine="vllm", installed=False), "neither vllm nor Docker is here"),
        ("nvfp4", Here(), "it needs vllm, and this proof runs llamacpp"),
    ],
)
def test_a_step_that_cannot_run_says_why(step: str, machine: Here, why: str) -> None:
    assert why in obstacle(STEPS[step], machine)
    assert obstacle(STEPS["machine"], machine) == ""


def test_the_process_of_another_user_is_named() -> None:
    listed = parse(recorded("nvidia-smi", "compute-apps.txt"), PROCESS_FIELDS)
    others = tuple(GpuProcess(int(row["pid"]), row["process_name"], None) for row in listed)
    busy = here(changed(memory_total="81559", memory_free="900"), others=others)
    assert others[0].name in obstacle(STEPS["shape-fp8"], busy)
    assert "0.9 GiB of NVIDIA H100" in obstacle(STEPS["tiny"], busy)


@pytest.mark.parametrize("name", ["shape-fp8", "shape-bf16-plain"])
def test_the_shapes_take_the_arguments_of_plan_and_only_known_ones(tmp_path: Path, name: str) -> None:
    step = STEPS[name]
    plan = plan_deployment(MACHINES["h100"], Choice(profile="h100", model=step.model, runtime="native"), CATALOG)
    target, drafter = shapes.write(tmp_path, step.model)
    planned = tuple(engine_command(plan))
    words = shape_command(planned, target, drafter, drafts=step.drafts, port=9)
    assert unknown_options(words, CATALOG.options[plan.engine.name]) == []
    assert unknown_options((*words, "--enable-sleep-mode", "--banana"), CATALOG.options[plan.engine.name]) == [
        "--banana"
    ]
    assert words[words.index("--max-num-seqs") + 1] == planned[planned.index("--max-num-seqs") + 1]
    assert "--middleware" not in words
    assert ("--speculative-config" in words) is step.drafts
    if step.drafts:
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert len(config["synthetic_acceptance_rates"]) == config["num_speculative_tokens"]
    shape = json.loads((target / "config.json").read_text())["text_config"]
    assert plan.pair.shape
    assert (shape["num_hidden_layers"], shape["hidden_size"]) == (plan.pair.shape.layers, plan.pair.shape.hidden_size)
    assert ("quantization_config" in json.loads((target / "config.json").read_text())) is step.model.endswith("fp8")
    vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    assert shapes.VOCABULARY - 100 < len(vocabulary) <= shapes.VOCABULARY


def test_what_proves_a_step() -> None:
    assert judged(STEPS["tiny"], [0, 0, 0], "") == ("passed", "")
    assert judged(STEPS["tiny"], [0, 6], "") == ("failed", "exit code 6")
    assert judged(STEPS["tiny"], [0, None], "")[0] == "timed-out"
    fault = STEPS["fault-no-cache"]
    assert judged(fault, [5], "Not enough MEMORY for one sequence") == ("passed", "")
    assert judged(fault, [5], "it exited")[0] == "failed"
    assert judged(fault, [0], "memory")[0] == "failed"


def test_figures_of_a_log_are_beside_those_of_plan() -> None:
    sizes = "GPU KV cache size: 270,778 tokens\nGPU KV cache size: 270,000 tokens"
    log = f"Model loading took 28.1 GiB memory and 3 s\n{sizes}"
    plan = plan_deployment(MACHINES["h100"], Choice(profile="h100", model="qwen3.5-27b-fp8"), CATALOG)
    planned = {"memory": {"cache_tokens": 270778}, "speed": {"expected": [speed.document() for speed in plan.speed]}}
    found = beside_plan(figures_in_log(log), planned)
    assert (found["load-gib"], found["cache-tokens"], found["planned-cache-tokens"]) == (28.1, 270000, 270778)
    assert found["planned-dflash-1-low"] < found["planned-dflash-1-high"]


def test_a_loader_that_computes_something_else_is_far_from_its_reference() -> None:
    right = [[[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]]
    assert distance([[[5.0, 6.0, 7.0], [3.0, 1.0, 0.0]]], right)["relative-error"] == 0
    wrong = distance([[[0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]], right)
    assert wrong["relative-error"] > LOADER_ERROR
    assert math.isfinite(wrong["worst-position"])


def test_the_page_and_the_documents_of_a_proof() -> None:
    named = {"profile": "h100", "model": "tiny", "engine": "vllm-0.33"}
    command = Command(("up", "<script>", "hf_abcdefghijklmnopqrstuvwx"), None, 9.0, "a" * 64)
    measured = [row.document() for row in rows()]
    done = [
        Outcome(STEPS["tiny"], "passed", 5.0, "", (command,), {"load-gib": 1.5}, measured, "b" * 64, named),
        Outcome(STEPS["sleep"], "timed-out", 240.0, "box17.corp.example did not answer"),
    ]
    shown = page.html({"GPU": "NVIDIA <b>"}, done)
    assert "<script>" not in shown
    assert "NVIDIA &lt;b&gt;" in shown
    assert "exit code none (limit)" in shown
    assert "http" not in shown
    whole = json.loads(page.document({}, done))["data"]["steps"]
    assert [step["state"] for step in whole] == ["passed", "timed-out"]
    assert whole[0]["commands"][0]["log"] == "a" * 64
    assert "hf_abc" not in shown + json.dumps(whole)
    text = page.shared(SharedMachine(threads=2), "native", CATALOG, done).text()
    assert "corp.example" not in text
    assert "script" not in text
    result = parse_document(text, SharedResult)
    assert (result.profile, result.engine, result.steps[0].model) == ("h100", "vllm-0.33", "tiny")
    assert result.steps[0].figures == {"load-gib": 1.5}


SECRET = "hf_abcdefghijklmnopqrstuvwx"
PLANTED = {
    "a key": SECRET,
    "a password in a URL": "https://alice:open-sesame@hub.corp.example/x",
    "a host": "box17.corp.example",
    "another host": "registry.acme.internal",
    "the name of the host in an error": "[Errno 111] box17: connection refused",
    "a user": "permission denied for alice",
    "a path": "/home/alice smith/models/x.gguf",
    "a path of MODEL_HOST_PATH": "--model=/srv/alice-secret/qwen",
    "a home directory": "~alice/models",
    "IPv4": "10.20.30.40:8000",
    "IPv6": "fe80::1ff:fe23:4567:890a",
    "a MAC address": "aa:bb:cc:dd:ee:ff",
    "a GPU": "GPU-8a6d5a5c-1111-2222-3333-1234567890ab",
    "a serial number": "Serial Number: 1320921001234",
    "an address": "alice.smith@acme.example",
}
WORDS = ("alice", "box17", "acme", "corp", SECRET, "sesame", "srv", "smith", "10.20", "fe80", "890a", "dd:ee", "8a6d")


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_nothing_of_the_machine_and_its_user_is_in_the_page_or_in_a_file(planted: str) -> None:
    clean = cleaner(["box17.corp.example", "box17", "alice"], [Path("/home/alice smith")])
    (row,) = [row.document() for row in rows()][:1]
    hostile = {"model": planted, "profile": planted, "engine": planted, "image": planted}
    outcome = Outcome(
        STEPS["tiny"],
        "failed",
        reason=f"OSError: {planted}",
        commands=(Command(("vllm", "serve", planted, f"EXTRA_ARGS={planted}"), 1, 0.1, ""),),
        rows=[row | {"problem": planted, "workload": planted}],
        named=hostile,
        settings={"MODEL_HOST_PATH": planted, "ATTENTION_BACKEND": planted},
    )
    done = page.without_names(outcome, clean)
    machine = redacted({"GPU": planted, "driver": planted}, clean)
    text = page.shared(SharedMachine(threads=2), "native", CATALOG, [outcome], {"torch": planted}).text()
    for shown in (page.document(machine, [replace(done, named={}, settings={})]), page.html(machine, [done]), text):
        assert [word for word in (*WORDS, planted, "1320921001234") if word in shown] == []


def test_what_identifies_a_run_stays() -> None:
    clean = cleaner(["box17", "alice", "vllm"], [Path("/srv")])
    for text in (
        "vllm 0.33.1.dev0+g1234567, torch 2.11.0+cu130, driver 580.126.09, Linux 6.12.3",
        "vllm serve --port 8000 --host 127.0.0.1 --max-model-len 262144 http://127.0.0.1:8000/v1/models",
        "std::bad_alloc in vllm.v1.worker.gpu at 12:34:56, ~20 s, 3/4 of the memory, and/or tokens/s",
        "RuntimeError: CUDA error: out of memory (70.2 of 79.6 GiB)",
    ):
        assert clean(text) == text
    assert clean("a driver from http://www.nvidia.com/Download/x.aspx") == "a driver from http://[host]/Download/x.aspx"


def test_each_shared_result_is_valid_and_of_known_steps() -> None:
    results = read()
    assert results
    for result in results.values():
        assert {result.profile} <= {"", *CATALOG.profiles}
        assert {step.name for step in result.steps} <= set(STEPS)
    assert {name for needed in PROVED_BY.values() for name in needed} <= set(STEPS)
