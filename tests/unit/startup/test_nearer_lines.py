"""The line that is nearest to an end names it, before general words of the same log."""

from collections.abc import Sequence

import pytest

from tests.unit.startup.explained import FAILED, named


def core(*lines: str) -> list[str]:
    """A core of vLLM that fails with these lines of a traceback."""
    before = "(EngineCore pid=9) ERROR 09-12 08:41:07 [core.py:1140] "
    texts = ("EngineCore failed to start.", "Traceback (most recent call last):", *lines)
    return [f"{before}{text}" for text in texts]


def frame(path: str, function: str) -> str:
    return f'  File "/usr/lib/python3/{path}", line 48, in {function}'


LOADED = (
    "(EngineCore pid=9) INFO 09-12 08:36:20 [backends.py:190] Directly load the compiled graph(s) for compile range"
)
RUNS_GRAPH = frame("vllm/compilation/caching.py", "optimized_call")
PRODUCT = frame("flashinfer/gemm/gemm_base.py", "_cudnn_gemm_fp8")
EAGLE = frame("vllm/v1/worker/gpu/spec_decode/eagle/utils.py", "load")
LLAMA = frame("vllm/model_executor/models/llama.py", "__init__")
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
INTEGERS = "AssertionError: Expected tensors only, but got: <class 'int'>"
NORM = "AttributeError: 'LlamaConfig' object has no attribute 'norm_output'"
REFUSED = "RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM"


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ([LOADED, *core(RUNS_GRAPH, INTEGERS)], "compile-cache-outdated"),
        # memory is memory in any graph
        ([LOADED, *core(RUNS_GRAPH, NO_MEMORY)], "gpu-out-of-memory"),
        (core(EAGLE, LLAMA, NORM), "drafter-read-as-another"),
        # the target, not the drafter
        (core(LLAMA, NORM), "config-of-other-transformers"),
        (core(PRODUCT, REFUSED), "cudnn-product-failed"),
        (core(PRODUCT, "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cudnn-without-memory"),
        (core(REFUSED), "cudnn-failed"),
    ],
)
def test_a_frame_says_more_than_the_words_of_the_exception(log: Sequence[str], name: str) -> None:
    assert named(log, FAILED) == name


def test_a_graph_that_was_compiled_at_this_start_is_not_an_old_one() -> None:
    assert named(core(RUNS_GRAPH, INTEGERS), FAILED) != "compile-cache-outdated"
    # nor is one of the start before
    again = "(APIServer pid=1) INFO 09-12 08:36:02 [api_server.py:1210] vLLM API server version 0.33.0"
    assert named([LOADED, again, *core(RUNS_GRAPH, INTEGERS)], FAILED) != "compile-cache-outdated"


WARNED = "box:240:240 [6] misc/x.cc:533 NCCL WARN"
CONNECT = f"{WARNED} socketStartConnect: Connect to 10.0.0.4<56849> failed : Connection refused"
ROUTE = f"{WARNED} socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115"
SHARED = f"{WARNED} Error: failed to extend /dev/shm/nccl-x to 33030532 bytes, error: No space left on device (28)"
LOCKED = f"{WARNED} Call to ibv_create_cq failed with error Cannot allocate memory"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (CONNECT, "nccl-address-not-reached"),
        (ROUTE, "nccl-address-not-reached"),
        (SHARED, "disk-full"),
        (LOCKED, "nccl-memory-not-locked"),
    ],
)
def test_nccl_s_own_line_says_more_than_the_exception_that_names_nccl(line: str, name: str) -> None:
    failed = core("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
    assert named([line, *failed], FAILED) == name
    assert named(failed, FAILED) == "nccl-failed"
    # it is no cause of another failure
    assert named([line, *core(NO_MEMORY)], FAILED) == "gpu-out-of-memory"


def test_a_container_without_its_devices_at_boot_only_came_too_early() -> None:
    words = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all"
    assert named([f"docker: Error response from daemon: {words}"], engine="") == "no-gpu-runtime"
    boot = f'time="2025-11-02T12:01:34Z" level=error msg="failed to start container" container=5f0c error="{words}"'
    assert named([boot], engine="") == "cdi-devices-late"
