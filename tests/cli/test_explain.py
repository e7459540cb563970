"""`explain` reads the log of any engine, from a file or a pipe, whatever its bytes, and keeps secrets."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_deploy.cli.app import app
from dflash_deploy.errors import FileInvalid, FileMissing, UnknownEngine
from dflash_deploy.intake.files import LONGEST, lines_of
from dflash_deploy.operations.explain import explain_log
from tools.diagnosis.score import BLIND_SETS, HALVES, cases

CORE = "(EngineCore pid=274) ERROR 08-03 17:46:10 [core.py:1136] "
BANNER = "(APIServer pid=1) INFO 08-03 17:45:30 [utils.py:299]   █▄█▀ █     █     █     █  version 0.28.0"
KNOWN = f"{BANNER}\n{CORE}ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each decode\n"
UNKNOWN = f"{BANNER}\n{CORE}KeyError: 'the moon, hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'\n"


def explained(path: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["explain", str(path), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def log(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "engine.log"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_known_failure_is_named_with_its_evidence_and_fix(tmp_path: Path) -> None:
    said = explained(log(tmp_path, KNOWN))
    assert "/reference/failures.html#sequences-beyond-state-cache\n" in said
    for text in (
        "vLLM 0.28.0",
        "room for 969, not 1024",
        "MAX_NUM_SEQS=969",
        "sequences-beyond-state-cache",
        "(1024) exceeds",
    ):
        assert text in said


def test_an_unknown_failure_shows_its_line_and_a_text_for_an_issue_without_secrets(tmp_path: Path) -> None:
    file = log(tmp_path, UNKNOWN)
    data = json.loads(explained(file, "--json", "--exit-code", "137"))["data"]
    assert (data["verdict"], data["failure"], data["circumstances"]) == ("unknown", None, ["signal 9 ended it"])
    issue = explained(file, "--issue")
    assert "KeyError: 'the moon" in issue
    assert "vLLM 0.28.0" in issue
    assert "hf_abcdef" not in issue + explained(file) + json.dumps(data)


def test_a_part_of_the_engine_is_likely_and_is_shown_with_its_lines_and_the_text_for_an_issue(tmp_path: Path) -> None:
    frame = 'File "/x/vllm/lora/ops/triton_ops/lora_shrink_op.py", line 149, in _lora_shrink'
    raised = (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        f"  {frame}",
        "    assert of_all",
        "AssertionError",
    )
    file = log(tmp_path, "\n".join((BANNER, *(CORE + line for line in raised))))
    said = explained(file)
    for text in (
        "LoRA adapters failed (AssertionError)",
        "(likely)",
        "--enable-lora",
        frame,
        "assert of_all",
        "--issue",
    ):
        assert text in said
    assert "adapter-code-failed" in explained(file, "--issue")


def test_a_healthy_log_shows_no_failure(tmp_path: Path) -> None:
    data = json.loads(explained(log(tmp_path, f"{BANNER}\nINFO:     Application startup complete.\n"), "--json"))[
        "data"
    ]
    assert (data["verdict"], data["engine"], data["release"], data["lines"]) == ("none", "vllm", "0.28.0", [])


@pytest.mark.parametrize("content", [b"\x07\x00\xfe" * 50, b"DFLASH_PORT=8000\nVLLM_API_KEY=abc\n"])
def test_what_is_no_log_of_an_engine_is_not_called_healthy(tmp_path: Path, content: bytes) -> None:
    said = explained(log(tmp_path, content))
    assert "no line is one of vLLM, SGLang or llama.cpp" in said
    assert "shows no failure" not in said
    assert "shows no failure" in explained(log(tmp_path, f"{BANNER}\n"))


@pytest.mark.parametrize("content", [b"", b"\x00" * 5000, os.urandom(200_000), b"\xff\xfe" + KNOWN.encode("utf-16-le")])
def test_any_bytes_are_read(tmp_path: Path, content: bytes) -> None:
    assert json.loads(explained(log(tmp_path, content), "--json"))["status"] == "ok"


def test_colors_are_read_through(tmp_path: Path) -> None:
    colored = KNOWN.replace("(EngineCore", "\x1b[0;36m(EngineCore").replace(") ERROR", ")\x1b[0;0m ERROR")
    assert "sequences-beyond-state-cache" in explained(log(tmp_path, colored))


XID = "[ 388.565288] NVRM: Xid (PCI:0000:01:00): 79, pid=6211, name=VLLM::EngineCor, GPU has fallen off the bus."


def test_an_xid_in_a_pasted_kernel_log_is_named(tmp_path: Path) -> None:
    driver = "[    4.100000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01"
    for text in (XID, f"Nov 22 22:40:59 box kernel: {XID.partition('] ')[2]}", f"{BANNER}\n{driver}\n{XID}"):
        data = json.loads(explained(log(tmp_path, text), "--json"))["data"]
        assert (data["verdict"], data["failure"]["id"]) == ("likely", "gpu-lost")
    data = json.loads(explained(log(tmp_path, driver), "--json"))["data"]
    assert (data["verdict"], data["failure"]) == ("none", None)


def test_an_xid_below_an_exception_that_is_known_does_not_hide_it(tmp_path: Path) -> None:
    assert "sequences-beyond-state-cache" in explained(log(tmp_path, f"{KNOWN}{XID}\n"))


def test_an_xid_that_no_row_knows_is_shown(tmp_path: Path) -> None:
    data = json.loads(explained(log(tmp_path, XID.replace(": 79,", ": 62,").replace("fallen off", "left")), "--json"))[
        "data"
    ]
    assert (data["verdict"], data["failure"]) == ("unknown", None)
    assert "62" in data["lines"][0]


def test_a_prompt_that_quotes_an_xid_is_no_failure(tmp_path: Path) -> None:
    server = "(APIServer pid=1) "
    request = f"{server}INFO 04-20 11:12:59 [logger.py:40] Received request x: prompt: 'What is"
    quoted = f"{request}\n{server}{XID}\n{server}?', params: P(n=1)"
    data = json.loads(explained(log(tmp_path, f"{BANNER}\n{quoted}\n"), "--json"))["data"]
    assert data["verdict"] == "none"


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(KNOWN,))
    writer.start()
    assert "sequences-beyond-state-cache" in explained(pipe)
    writer.join()


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(KNOWN.encode()),
        gzip.compress(BANNER.encode()) + gzip.compress(f"\n{KNOWN}".encode()) + bytes(512),
        gzip.compress((KNOWN + "a library says something\n" * 100_000).encode())[:-200],
    ],
    ids=["whole", "rotated into one file", "the end is missing"],
)
def test_a_gzip_file_is_unpacked(tmp_path: Path, packed: bytes) -> None:
    assert "sequences-beyond-state-cache" in explained(log(tmp_path, packed))


@pytest.mark.parametrize(
    ("packed", "says", "hint"),
    [
        (lzma.compress(KNOWN.encode()), "compressed with xz", "xz -dc FILE | dflash-deploy explain -"),
        (bz2.compress(KNOWN.encode()), "compressed with bzip2", "bzip2 -dc FILE"),
        (bytes.fromhex("28b52ffd0458"), "compressed with zstd", "zstd -dc FILE"),
        (b"PK\x03\x04" + bytes(40), "a zip archive", "unzip -p FILE"),
        (gzip.compress(KNOWN.encode())[:20] + b"x" * 200, "a damaged gzip file", "copy it again"),
    ],
)
def test_another_compressed_file_is_refused_with_what_unpacks_it(
    tmp_path: Path, packed: bytes, says: str, hint: str
) -> None:
    with pytest.raises(FileInvalid, match=says) as refused:
        explain_log(log(tmp_path, packed))
    assert hint in refused.value.hint


def test_a_gzip_file_that_unpacks_to_much_takes_bounded_memory(tmp_path: Path) -> None:
    file = log(tmp_path, gzip.compress(b"x" * 60_000_000))
    tracemalloc.start()
    explain_log(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        explain_log(tmp_path / "none.log")


def test_a_long_log_takes_bounded_memory(tmp_path: Path) -> None:
    line = f"{BANNER.replace('version 0.28.0', 'x')} {'y' * 300} {{}}\n"
    error = f"{CORE}ValueError: number {{}} {'z' * 300}\n"
    file = log(tmp_path, "".join(line.format(n) + error.format(n) for n in range(30_000)))
    tracemalloc.start()
    explain_log(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the file has 22 MB; messages of warnings and errors are kept up to 20,000
    assert most < 100_000_000


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    (line,) = lines_of(log(tmp_path, b"a" * (5 * LONGEST + 7)))
    assert len(line) <= 2**20 + LONGEST


@pytest.mark.parametrize("half", HALVES)
def test_the_engine_is_recognised_in_the_logs_of_others(tmp_path: Path, half: str) -> None:
    wrong = {}
    for case in cases(half):
        found = explain_log(log(tmp_path, "\n".join(case.lines)))
        if found.engine and found.engine.removesuffix("-buun") != case.engine.removesuffix("-buun"):
            wrong[case.name] = found.engine
        if found.verdict != "unknown" and found.failure is not None:
            assert found.failure.id in case.right, case.name
    assert wrong == {}


@pytest.mark.parametrize(
    ("engine", "title", "failure"),
    [
        ("llamacpp", "llama.cpp", "llamacpp-assertion"),
        ("llamacpp-cpu-b11549", "llama.cpp b11549", "llamacpp-assertion"),
        ("vllm", "vLLM", None),
        ("sglang-0.5.23", "SGLang 0.5.23", None),
    ],
)
def test_the_engine_of_a_log_that_does_not_name_it_can_be_told(
    tmp_path: Path, engine: str, title: str, failure: str | None
) -> None:
    file = log(tmp_path, "/x/ggml.c:2245: GGML_ASSERT(ggml_can_repeat(b, a)) failed\n")
    assert f"engine    {title}\n" in explained(file, "--engine", engine)
    data = json.loads(explained(file, "--engine", engine, "--json"))["data"]
    assert (data["failure"] and data["failure"]["id"]) == failure
    assert not any("--engine" in text for text in data["not_known"])


def test_a_log_without_an_engine_says_how_to_name_it(tmp_path: Path) -> None:
    assert "pass --engine if you know it" in explained(log(tmp_path, "RuntimeError: the moon\n"))


@pytest.mark.parametrize(("engine", "guess"), [("vllm-0.3", "vllm-0.33"), ("sglang-0.5", "sglang-0.5.23"), ("vlm", "")])
def test_an_engine_that_is_not_known_is_refused_as_init_does(tmp_path: Path, engine: str, guess: str) -> None:
    with pytest.raises(UnknownEngine, match=f"`{engine}` is not a known engine release") as refused:
        explain_log(log(tmp_path, KNOWN), engine=engine)
    assert (f"did you mean {guess}?" if guess else "valid names: ") in refused.value.hint


LOADING = "0.00.168.542 I srv    load_model: loading model 'Qwen3.6-27B-Q4_K_M.gguf'"
FITTING = (
    "0.00.461.531 E llama_init_from_model: failed to initialize the context: dflash requires ctx_other to be set "
    "(this warning is normal during memory fitting)"
)
TRITON = "ERROR 04-01 11:21:57 [config.py:29] Failed to import Triton kernels. Error: No module named 'triton_kernels'"
MEMORY_ERROR = "0.00.010.128 E srv    load_model: something failed"


@pytest.mark.parametrize(
    "lines",
    [
        (
            LOADING,
            *(f"0.00.2{number}0.000 I load_tensors: layer {number}" for number in range(8)),
            "main: model loaded",
        ),
        (LOADING, MEMORY_ERROR, "0.00.268.853 I srv          init: model loaded"),
        (LOADING, MEMORY_ERROR, "0.00.221.347 I llama_server: model loaded"),
        (LOADING, FITTING, "0.07.911.111 I srv    load_model: initializing, n_slots = 1"),
        (FITTING.partition(" E ")[2],),
        (TRITON, BANNER),
        (
            BANNER,
            "(EngineCore pid=3) [ERROR] `min_frames` is part of Qwen3VLVideoProcessorInitKwargs, but not documented.",
        ),
        (BANNER, "[ok] patched marlin.py (asym-assert message + guard block)"),
        (BANNER, "Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:01<00:02,  1.00it/s]"),
        (MEMORY_ERROR, f"{BANNER}\n(APIServer pid=1) INFO:     Application startup complete."),
        ("[2025-06-25 14:01:42] Load weight begin. avail mem=22.46 GB",),
    ],
)
def test_a_log_that_loads_or_has_loaded_is_not_of_an_unknown_cause(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert "cause     the log shows no failure" in explained(log(tmp_path, "\n".join(lines) + "\n"))


FRAME = '  File "/x/vllm/moon/new.py", line 7, in load\n    value = table[name]\n'


@pytest.mark.parametrize(
    "end",
    [
        f"Traceback (most recent call last):\n{FRAME}",
        FRAME,
        "".join(f"{CORE}{line}\n" for line in ("Traceback (most recent call last):", *FRAME.splitlines())),
        f"main: model loaded\nTraceback (most recent call last):\n{FRAME}",
    ],
)
def test_a_log_that_ends_in_a_traceback_shows_a_failure(tmp_path: Path, end: str) -> None:
    data = json.loads(explained(log(tmp_path, f"{BANNER}\n{end}"), "--json"))["data"]
    assert data["verdict"] == "unknown"
    assert data["lines"]


@pytest.mark.parametrize(
    ("code", "verdict"), [(1, "unknown"), (7, "unknown"), (-10, "unknown"), (0, "none"), (143, "likely")]
)
def test_an_exit_code_of_a_failure_is_one_whatever_the_log_shows(tmp_path: Path, code: int, verdict: str) -> None:
    data = json.loads(explained(log(tmp_path, f"{BANNER}\n"), "--json", "--exit-code", str(code)))["data"]
    assert data["verdict"] == verdict


# Logs that end with an error of a request, or of a shutdown: the same lines end logs of failures.
NOT_CERTAIN = {
    "unknown-model-asked",
    "n-vllm-unknown-models-asked",
    "v-healthy-nvfp4-wsl-404-then-serves",
    "q-healthy-vllm-spark-engine-dead-only-at-shutdown",
}


@pytest.mark.parametrize("name", ["healthy", *BLIND_SETS])
def test_the_log_of_an_engine_that_worked_shows_no_failure(tmp_path: Path, name: str) -> None:
    worked = [case for case in cases(name) if not case.decisive]
    ill = {one.name for one in worked if explain_log(log(tmp_path, "\n".join(one.lines))).verdict != "none"}
    assert ill <= NOT_CERTAIN


def test_an_empty_log_is_not_a_log_without_failures(tmp_path: Path) -> None:
    said = explained(log(tmp_path, ""))
    assert "cause     the log is empty" in said
    assert "2>&1" in said
    assert "no failure" not in said
