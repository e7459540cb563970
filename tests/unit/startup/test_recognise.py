"""A log is recognised by lines that only its engine writes; what another one may write counts if there are none."""

from collections import Counter

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.lines import Recognised
from tools.diagnosis.score import BLIND_SETS, HALVES, cases


def recognised(*lines: str, told: str = "") -> tuple[str, str]:
    found = Recognised(load_catalog().log_signs, told)
    assert tuple(found.watch(lines)) == lines
    return found.engine, found.release


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("sglang", "[2025-02-27 04:46:39 TP0] Decode batch. #running-req: 8, #token: 62531, token usage: 0.12"),
        ("sglang", "[2025-11-30 12:50:15] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.44 GB."),
        ("sglang", "[19:01:01 TP0] Init nccl begin."),
        ("sglang", "launch_server.py: error: unrecognized arguments: --reasoning_parser kimi_k2"),
        ("vllm", "INFO 05-20 20:12:25 [__init__.py:252] No platform detected, vLLM is running on UnspecifiedPlatform"),
        ("vllm", "WARNING 04-08 00:16:41 config.py:211] gptq quantization is not fully optimized yet."),
        ("vllm", "vllm: error: unrecognized arguments: --disable-log-requests"),
        ("vllm", "(VllmWorker rank=3 pid=4867) ERROR 07-26 18:47:24 [multiproc_executor.py:511] ValueError"),
        ("llamacpp", "0.00.165.302 I cmn  common_param: device_info:"),
        ("llamacpp", "[64126] 1.46.429.743 I  - graphs reused =        205"),
        ("llamacpp", "slot launch_slot_: id  0 | task 1195 | processing task"),
        ("llamacpp", "srv   operator (): operator (): cleaning up before exit..."),
        ("llamacpp", "main: server is listening on http://127.0.0.1:8080 - starting the main loop"),
        ("", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        ("", "Error response from daemon: unknown or invalid runtime name: nvidia"),
        ("", "INFO:     Application startup complete."),
    ],
)
def test_one_line_names_the_engine_if_only_that_engine_writes_it(engine: str, line: str) -> None:
    assert recognised(line) == (engine, "")


# What SGLang's log has of vLLM, which it imports.
OF_VLLM = (
    "INFO 03-06 10:05:08 __init__.py:190] Automatically detected platform cuda.",
    "/usr/lib/python3.12/site-packages/vllm/connections.py:8: RuntimeWarning: Failed to read commit hash:",
    '  File "/opt/vllm/vllm/model_executor/layers/linear.py", line 594, in weight_loader_v2',
)


@pytest.mark.parametrize("line", OF_VLLM)
@pytest.mark.parametrize(
    "own",
    [
        "[2025-04-28 05:39:43] server_args=ServerArgs(model_path='meta-llama/Llama-3.2-1B-Instruct')",
        "launch_server.py: error: unrecognized arguments: --enable-reasoning",
        "ValueError: Not enough memory. Please try to increase --mem-fraction-static.",
    ],
)
def test_lines_of_a_library_do_not_make_the_log_one_of_another_engine(line: str, own: str) -> None:
    assert recognised(line)[0] == "vllm"
    for order in ((line, own), (own, line)):
        assert recognised(*order)[0] == "sglang"


@pytest.mark.parametrize(
    "quoted", ["llama-server", "torch.ops._C.ggml_dequantize(W)", "python -m sglang::x", "bin/sglang"]
)
def test_words_of_another_engine_before_its_own_line_do_not_count(quoted: str) -> None:
    own = "(APIServer pid=1) INFO 08-03 17:45:30 [utils.py:299] vLLM API server version 0.28.0"
    assert recognised(f"warning: {quoted}", own) == ("vllm", "0.28.0")


@pytest.mark.parametrize("told", ["vllm", "sglang", "llamacpp"])
def test_the_engine_that_is_told_is_the_one(told: str) -> None:
    lines = (
        "srv  update_slots: all slots are idle",
        "build: 5774 (27208bf6) with GNU 13",
        "vLLM API server version 0.7.3",
    )
    assert recognised(*lines)[0] == "llamacpp"
    assert recognised(*lines, told=told) == (told, {"vllm": "0.7.3", "llamacpp": "b5774"}.get(told, ""))


def test_no_log_of_others_is_taken_for_one_of_another_engine() -> None:
    found: Counter[str] = Counter()
    for name in (*HALVES, "healthy", *BLIND_SETS):
        for case in cases(name):
            engine, _ = recognised(*case.lines)
            # a log of the fork rarely says so
            right = engine.removesuffix("-buun") == case.engine.removesuffix("-buun")
            assert right or not engine, case.name
            found[engine or "none"] += 1
    # most of the others are one line of Python or Docker
    assert found["none"] < found.total() / 5
