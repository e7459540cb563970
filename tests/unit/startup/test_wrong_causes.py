"""Lines that look like a known failure and are another one: no wrong cause is named."""

from pathlib import Path

import pytest

from dflash_deploy.diagnosis.diagnose import ProcessEnd
from tests.support.rows import each_of, rows_of
from tests.unit.startup.explained import FAILED, FAILURES, explained, named

# Rows, and lines of other failures that contain words of theirs.
LIKE_OTHERS: dict[str, list[str]] = rows_of(Path(__file__).with_name("lines_of_others.yaml"))


@each_of((name, line) for name, lines in LIKE_OTHERS.items() for line in lines)
def test_words_of_a_row_in_another_failure_do_not_name_it(row: tuple[str, str]) -> None:
    name, line = row
    for end in (ProcessEnd(), FAILED):
        assert named([line], end) != name
        assert named([line], end, engine="") != name


STILL_KNOWN = (
    (
        "parallel-size-does-not-divide",
        "ValueError: Total number of attention heads (28) must be divisible by tp_size 8",
    ),
    (
        "hub-token-refused",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2",
    ),
    (
        "address-not-here",
        "OSError: [Errno 99] error while attempting to bind on address ('::9', 80): cannot assign requested address",
    ),
    ("processor-refuses-input", "AttributeError: 'Qwen3VLProcessor' object has no attribute '_get_num_tokens'"),
    ("host-out-of-memory", "ERROR 11-21 11:01:56 [x.py:1] mmap of the weights: Cannot allocate memory"),
    ("name-not-resolved", "dial tcp: lookup registry-1.docker.io on 127.0.0.53:53: server misbehaving"),
    ("kernel-launch-failed", "RuntimeError: Triton Error [CUDA]: misaligned address"),
    ("no-arch-in-compiler", "RuntimeError: 'sm_121a' is not a recognized processor for this target"),
    ("drafter-lacks-methods", "AttributeError: 'Qwen3_5MTP' object has no attribute 'lm_head'"),
    ("pipeline-with-drafter", "ValueError: Qwen3ForCausalLM does not support eagle3 with pipeline parallelism"),
    ("tokenizer-file-newer", "Exception: unknown variant `Byte`, expected one of `BertNormalizer`, `Strip`, `NFC`"),
    ("shared-memory-too-small", "RuntimeError: unable to open shared memory object </torch_12> in read-write mode"),
)


@pytest.mark.parametrize(("name", "line"), STILL_KNOWN)
def test_a_line_of_the_row_itself_names_it(name: str, line: str) -> None:
    assert named([line], FAILED) == name


@pytest.mark.parametrize(
    "detail",
    ["  Value error, Expecting value: line 1 column 2 (char 1)", "  Value error, top_k must be at least 1 [x]"],
)
@pytest.mark.parametrize("kind", ["pydantic_core._pydantic_core.ValidationError: ", ""])
def test_what_pydantic_says_of_a_request_is_no_setting(detail: str, kind: str) -> None:
    text = [f"{kind}1 validation error for ChatCompletionRequest", detail]
    for log in (text, [f"(APIServer pid=1) ERROR 11-21 11:01:56 [x.py:1] {line}" for line in text]):
        assert named(log) is None
        assert named(log, FAILED) is None
    assert named([text[0].replace("ChatCompletionRequest", "ModelConfig"), detail], FAILED) is not None


@pytest.mark.parametrize(
    ("kind", "known"), [("ParallelConfig", "config-field-refused"), ("UserMessage", None), ("ToolChoice", None)]
)
def test_only_a_configuration_that_pydantic_refuses_is_a_setting(kind: str, known: str | None) -> None:
    log = [f"pydantic_core.ValidationError: 1 validation error for {kind}", "role", "  Input should be 'user' [type=x]"]
    assert named(log, FAILED) == known


def test_gloo_reports_the_end_of_another_process() -> None:
    log = [
        "(Worker_TP0 pid=1) ERROR 11-21 11:01:56 [x.py:1] ValueError: the moon is full",
        "(Worker_TP1 pid=2) ERROR 11-21 11:01:57 [x.py:1] RuntimeError: Gloo connectFullMesh failed with no error",
    ]
    found = explained(log, FAILED)
    assert found.diagnosis is None
    assert found.lines[0] == "ValueError: the moon is full"


def test_a_cause_names_no_frequent_reason_that_its_line_does_not_prove() -> None:
    assert [failure.id for failure in FAILURES if "most often" in failure.cause] == []


def test_a_gated_repository_is_told_before_the_name_that_it_makes_invalid() -> None:
    log = [
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://huggingface.co/x",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/x/vllm/config.py", line 9, in get_config',
        "ValueError: Invalid repository ID or local directory specified: 'a/b'.",
    ]
    assert named(["Traceback (most recent call last):", '  File "/x/y.py", line 1, in z', *log], FAILED) == (
        "repository-gated"
    )
    assert named(log[4:], FAILED) == "no-such-directory-or-repository"


SIZES = "RuntimeError: The size of tensor a (2048) must match the size of tensor b (4096) at non-singleton dimension 1"
WORKER = "(Worker_TP1 pid=194) ERROR 03-20 07:48:17 [multiproc_executor.py:800] "


def raised_in(*functions: str, indent: str = "  ", begins: bool = True, text: str = SIZES) -> list[str]:
    lines = ["Traceback (most recent call last):"] if begins else []
    for number, function in enumerate(functions):
        lines += [f'{indent}File "/x/vllm/part.py", line {number}, in {function}', f"{indent * 2}target.copy_(other)"]
    return [WORKER + line for line in (*lines, text)]


@pytest.mark.parametrize("indent", ["  ", ""])
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(
    "function", ["load_weights", "_rotation_weight_loader", "load_row_parallel_weight", "load_model"]
)
def test_what_fails_while_weights_are_loaded_is_no_step(function: str, begins: bool, indent: str) -> None:
    log = raised_in(function, "copy", indent=indent, begins=begins)
    found = explained(log, FAILED)
    assert found.diagnosis is None
    assert SIZES in found.lines
    assert named(raised_in("execute_model", "forward", indent=indent, begins=begins)) == "tensor-sizes-differ"


def test_a_step_that_fails_after_the_weights_is_a_step() -> None:
    warned = raised_in("load_weights", text="UserWarning: the weights are old")[:-1]
    calm = [f"{WORKER.replace('ERROR', 'INFO')}step {number} of the engine version " for number in range(5)]
    assert named([*warned, *calm, *raised_in("forward")]) == "tensor-sizes-differ"


def test_another_failure_while_weights_are_loaded_is_named() -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert named(raised_in("load_model", "load_weights", text=full)) == "gpu-out-of-memory"


def test_what_an_exception_says_counts_more_than_where_it_was_raised() -> None:
    log = raised_in("forward", text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    log[-2] = f"{WORKER}    out = torch.ops._vllm_fa2_C.varlen_fwd("
    assert named(log) == "gpu-out-of-memory"
    log[-1] = f"{WORKER}RuntimeError: the moon is full"
    assert named(log) == "flash-attention-2-on-gb10"


def test_a_gguf_with_a_newer_type_is_not_called_damaged() -> None:
    log = [
        "gguf_init_from_reader: tensor 'blk.0.ffn_up.weight' has invalid ggml type 52. should be in [0, 42)",
        "gguf_init_from_reader: failed to read tensor info",
        "llama_model_load: error loading model: llama_model_loader: failed to load model from target.gguf",
    ]
    assert named(log, FAILED, "llamacpp") == "gguf-header-unreadable"


def test_a_fault_of_another_program_on_the_gpu_is_not_the_engines() -> None:
    fault = "NVRM: Xid (PCI:0000:01:00): 31, pid={}, name={}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
    assert named([], ProcessEnd(139), kernel=(fault.format(812, "Xorg"),)) == "segmentation-fault"
    for process in ("VLLM::EngineCor", "llama-server", "<unknown>"):
        assert named([], ProcessEnd(139), kernel=(fault.format(812, process),)) == "gpu-address-fault"


def test_a_driver_without_memory_does_not_explain_another_error() -> None:
    driver = ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",)
    serves = "INFO:     Application startup complete."
    too_long = "ValueError: the prompt is longer than the model's context length"
    assert named([], FAILED, kernel=driver) == "gpu-memory-refused-by-driver"
    assert named(["ValueError: the moon is full"], FAILED, kernel=driver) is None
    assert named([serves], ProcessEnd(), kernel=driver) is None
    assert named([serves, too_long], ProcessEnd(), kernel=driver) == "request-beyond-context"


def test_what_a_kernel_says_counts_more_than_that_it_crashed() -> None:
    crashed = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    assert named([crashed], FAILED) == "kernel-launch-failed"
    assert named(["This kernel only supports sm120.", crashed], FAILED) == "kernel-for-another-gpu"


def test_a_vocabulary_that_llamacpp_translates_hides_no_failure() -> None:
    differs = "common_speculative_are_compatible: draft model vocab type must match target model to use speculation"
    assert named([differs], FAILED, "llamacpp") == "drafter-vocabulary-differs"
    assert named([differs, "E srv load_model: error: the moon is full"], FAILED, "llamacpp") is None
    assert named([differs, "free(): invalid pointer"], ProcessEnd(134), "llamacpp") == "heap-corrupted"


def test_a_model_that_sglang_does_not_import_is_a_warning() -> None:
    ignored = (
        "[2026-10-26 14:54:00 TP3] Ignore import error when loading sglang.srt.models.x: libcuda.so.1: cannot open"
    )
    log = [f"{ignored} shared object file: No such file", "[2026-10-26 14:54:01 TP3] error: the moon is full"]
    assert named(log, FAILED, "sglang") is None
    unknown = "ValueError: Model architectures ['XForCausalLM'] are not supported for now. Supported architectures: x"
    assert named([log[0], unknown], FAILED, "sglang") == "sglang-architecture-unknown"
