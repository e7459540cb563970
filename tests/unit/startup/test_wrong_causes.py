"""Lines that look like a known failure and are another one: no wrong cause is named."""

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.startup import Explanation, LogReader, ProcessEnd

FAILURES = load_catalog().failures

NOT_KNOWN = ProcessEnd()
OOM = "Out of memory: Killed process 24045 (VLLM::EngineCor) total-vm:48922340kB, anon-rss:16384000kB"
CALM = [f"(APIServer pid=1) INFO 11-21 11:02:{n:02} [loggers.py:1] Avg prompt throughput: {n}" for n in range(50)]
LLAMACPP_ANSWER = "srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200"

OF_REQUESTS = {
    "request-beyond-context": (
        "vllm",
        "(APIServer pid=1) ERROR 11-21 11:01:56 [serving.py:9] ValueError: This model's maximum context length is 4096"
        " tokens. However, you requested 9000 tokens.",
    ),
    "image-unreadable": ("vllm", "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>"),
    "images-not-served": ("llamacpp", 'got exception: {"code":500,"message":"image input is not supported"}'),
    "grammar-refused": ("llamacpp", "srv    operator(): got exception: failed to parse grammar"),
    "tools-not-enabled": ("llamacpp", "error: tools param requires --jinja flag"),
    "images-beyond-limit": ("vllm", "ValueError: At most 1 image(s) may be provided in one prompt."),
    "chat-template-refuses": ("vllm", "jinja2.exceptions.TemplateError: Conversation roles must alternate"),
    "chat-template-missing": (
        "vllm",
        "ChatTemplateResolutionError: As of transformers v4.44, default chat template is no longer allowed",
    ),
    "schema-beyond-xgrammar": (
        "vllm",
        "ValueError: The provided JSON schema contains features not supported by xgrammar.",
    ),
    "image-beyond-pixels": (
        "vllm",
        "ValueError: Image dimensions 30000x30000 (900000000 pixels) exceed the maximum of 178956970 pixels.",
    ),
    "media-domain-refused": (
        "vllm",
        "ValueError: The URL must be from one of the allowed domains: ['a.example']. Input URL domain: b.example",
    ),
}
"""Refused requests: the engine, and what it writes."""


def explained(
    log: list[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> Explanation:
    return LogReader(FAILURES, engine, "b11549" if engine == "llamacpp" else "0.33.0").read(log, end, kernel)


def named(
    log: list[str], end: ProcessEnd = NOT_KNOWN, engine: str = "vllm", kernel: tuple[str, ...] = ()
) -> str | None:
    found = explained(log, end, engine, kernel).diagnosis
    return None if found is None else found.id


def test_these_are_the_rows_of_requests() -> None:
    assert {failure.id for failure in FAILURES if failure.request} >= OF_REQUESTS.keys()


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_is_named_as_long_as_no_end_is_known(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    assert named([line], engine=engine) == name
    assert named([line, *CALM], engine=engine) == name


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_does_not_hide_a_kill_for_memory(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    for log in ([line], [line, *CALM]):
        assert named(log, ProcessEnd(137), engine, (OOM,)) == "kernel-killed-engine"
        assert named(log, ProcessEnd(), engine, (OOM,)) == "kernel-killed-engine"
        assert named([*log, f"[123.4] {OOM}"], ProcessEnd(), engine) == "kernel-killed-engine"
        assert named(log, ProcessEnd(137, out_of_memory=True), engine) == "container-out-of-memory"
        # SGLang kills itself with signal 9 after a failure of its own, whose reason the log may not have
        assert named(log, ProcessEnd(137), engine) == ("" if engine == "sglang" else "killed")


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_is_no_cause_of_another_end(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    log = [line, *CALM]
    assert named(log, ProcessEnd(139), engine) == "segmentation-fault"
    assert named(log, ProcessEnd(-11), engine) == "segmentation-fault"
    assert named(log, ProcessEnd(restarts=3), engine) == "crash-loop"
    assert named(log, ProcessEnd(ended=True), engine) is None
    unknown = explained(log, ProcessEnd(1), engine)
    assert unknown.diagnosis is None
    assert unknown.lines


def test_an_unknown_exception_behind_a_refused_request_is_shown() -> None:
    _, line = OF_REQUESTS["request-beyond-context"]
    found = explained([line, *CALM, "ValueError: the moon is full"], ProcessEnd(1))
    assert found.diagnosis is None
    assert found.lines == ("ValueError: the moon is full",)


def test_a_request_that_llamacpp_answers_makes_the_refused_one_history() -> None:
    engine, line = "llamacpp", "srv send_error: the request exceeds the available context size"
    assert named([line], engine=engine) == "request-beyond-context"
    for before in ("", "0.51.940.248 I "):
        assert named([line, before + LLAMACPP_ANSWER], engine=engine) is None
        assert named([line, before + LLAMACPP_ANSWER.replace("200", "500")], engine=engine) is not None
        probe = LLAMACPP_ANSWER.replace("POST /v1/chat/completions", "GET /health")
        assert named([line, before + probe], engine=engine) is not None


LIKE_OTHERS = {
    "rope-settings-unknown": ("`rope_scaling`'s factor field must be a float >= 1, got 4",),
    "flashinfer-failed": ("RuntimeError: BatchPrefillWithPagedKVCache failed with error out of memory",),
    "special-tokens-are-a-list": (
        "TypeError: Special token image has to be either str or AddedToken but got: <class 'int'>",
    ),
    "parallel-size-does-not-divide": (
        "AssertionError: real block_size must be divisible by hash_block_size",
        "ValueError: block_size must be divisible by prefix_match_unit",
        "torch._inductor.exc.InductorError: ValueError: Q and KV block size must be divisible by BLOCK_M and BLOCK_N",
    ),
    "hub-token-refused": (
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://example.com/image.png",
    ),
    "address-not-here": (
        "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.9:5555')",
        "OSError: [Errno 99] Cannot assign requested address",
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host x:1 [Cannot assign requested address]",
    ),
    "nccl-no-interface": ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error",),
    "process-limit": ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 64: Operation not permitted",),
    "certificate-refused": (
        "SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired",
        "tls: failed to verify certificate: x509: certificate is valid for portal.example, not registry-1.docker.io",
        "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-01-01",
    ),
    "docker-not-running": (
        "failed to connect to the docker API at unix:///var/run/docker.sock: connect: permission denied",
    ),
    "hub-file-differs": ("ValueError: Checksum mismatch", "RuntimeError: hash mismatch for a graph of the cache"),
    "processor-refuses-input": (
        "AttributeError: 'InputProcessor' object has no attribute 'x'",
        "AttributeError: 'OutputProcessor' object has no attribute 'x'",
        "AttributeError: 'MinPLogitsProcessor' object has no attribute 'x'",
        "AttributeError: 'IOProcessor' object has no attribute 'x'",
    ),
    "host-out-of-memory": (
        "MemoryError: Not enough space in the data buffer, try calling free_buf() to free up space",
        "RuntimeError: Call to ibv_reg_mr failed with error Cannot allocate memory",
        "error: failed to mlock 4096-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        " tried to allocate 18446744073709551000 bytes. Error code 12 (Cannot allocate memory)",
    ),
    "weights-of-another-shape": ("RuntimeError: start (0) + length (5120) exceeds dimension size (2560).",),
    "compose-file-refused": (
        "jsonschema.exceptions.ValidationError: Additional properties are not allowed ('days' was unexpected)",
        "Additional properties are not allowed ('days' was unexpected)",
    ),
    "name-not-resolved": ("RuntimeError: the parameter server misbehaving was removed",),
    "port-taken": (
        "Port 8001 is already in use, trying port 8002",
        "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 80): permission denied",
        "ERROR: [Errno 99] error while attempting to bind on address ('10.0.0.9', 80): cannot assign requested address",
    ),
    "kernel-launch-failed": (
        "x.cpp:9:3: runtime error: load of misaligned address 0x7f12 for type 'int', which requires 4 byte alignment",
    ),
    "no-arch-in-compiler": ("'znver6' is not a recognized processor for this target (ignoring processor)",),
    "python-library-missing": (
        "ImportError: libpython3.12.so.1.0: cannot open shared object file: Permission denied",
        "ImportError: /usr/lib/libgomp.so.1: cannot allocate memory in static TLS block",
    ),
    "cuda-library-missing": ("ImportError: libcudart.so.12: cannot open shared object file: Permission denied",),
    "system-library-missing": ("ImportError: libgomp.so.1: cannot open shared object file: Permission denied",),
    "shared-library-missing": (
        "python3: error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file:"
        " Permission denied",
    ),
    "gpu-not-seen": ("ImportError: libcuda.so.1: cannot open shared object file: Permission denied",),
    "drafter-lacks-methods": (
        "AttributeError: 'SMTPHandler' object has no attribute 'host'",
        "NotImplementedError: SlidingWindow does not implement set_state",
    ),
    "structured-output-failed": ('  File "/srv/mesh/constrained/delaunay.py", line 9, in split',),
    "pipeline-with-drafter": ("ValueError: Qwen3ForCausalLM does not support LoRA with pipeline parallelism",),
    "hub-rate-limit": (
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://example.com/cat.png",
        "HTTP status client error (429 Too Many Requests) for url (https://collector.example.com/traces)",
    ),
    "shared-memory-too-small": (
        "RuntimeError: unable to open shared memory object </torch_12_34> in read-write mode: Too many open files (24)",
        "RuntimeError: Error while creating shared memory segment /dev/shm/nccl-Kd3jPM, error: Permission denied (13)",
    ),
    "vision-projection-quantised": (
        "ValueError: the shapes of embed_vision.embedding_projection.weight and its scale differ",
    ),
    "prefix-caching-on-cpu": ("RuntimeError: Triton could not compile precopy_mamba_align_fused_kernel: sm_121",),
    "forward-compatibility": ("RuntimeError: the proxy answered with Error 8041",),
    "no-gpu-in-process": ("RuntimeError: Failed to initialize NVML: Driver/library version mismatch",),
    "tensor-sizes-differ": (
        "AssertionError: Attempted to load weight (torch.Size([1024, 5120])) into parameter (torch.Size([512, 5120]))",
    ),
    "setting-refused-by-check": (
        "ValueError: There is no module or parameter named 'layers' in DFlashDraftModel for speculative decoding",
    ),
    "driver-too-old-for-cuda": ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version",),
    "disk-full": (
        "OSError: inotify_add_watch: No space left on device",
        "OSError: semget: No space left on device",
        "Error response from daemon: write /sys/fs/cgroup/cpu/docker/ff66/tasks: no space left on device",
    ),
    "weights-damaged": (
        "SafetensorError: Error while deserializing header: invalid JSON in header: unknown variant `F8_E8M0`",
    ),
    "weights-absent": (
        "gguf_init_from_file: failed to open GGUF file 'x.gguf' (Too many open files)",
        "gguf_init_from_file: failed to open GGUF file 'x.gguf' (Input/output error)",
    ),
    "config-of-other-transformers": (
        "AttributeError: 'ModelConfig' object has no attribute 'pooler_config'",
        "AttributeError: 'VllmConfig' object has no attribute 'kv_events_config'",
        "AttributeError: 'AWQMarlinConfig' object has no attribute 'packed_modules_mapping'",
        "AttributeError: 'GPTQMarlinConfig' object has no attribute 'lm_head_quantized'",
        "AttributeError: 'ModelOptNvFp4Config' object has no attribute 'x'",
        "AttributeError: 'CompressedTensorsConfig' object has no attribute 'x'",
        "AttributeError: 'FusedMoEQuantConfig' object has no attribute 'x'",
    ),
    "tensor-unknown-to-model": (
        "KeyError: 'model.layers.0.self_attn.attn'",
        "KeyError: 'model.layers.3.linear_attn'",
        "KeyError: 'layers.12.mlp.experts'",
        "KeyError: 'layers.0.mlp.experts.w2_weight'",
        "KeyError: 'model.layers.61.self_attn.indexer.k_cache'",
    ),
    "kernel-for-another-gpu": ("NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.",),
    "gguf-mtp-head-unknown": ("llama_model_load: error loading model: missing tensor 'blk.0.ssm_conv1d.weight'",),
    "custom-all-reduce-failed": (
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'out of memory'",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'no kernel image is available for execution'",
    ),
    "rank-unreachable": ("torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//2",),
    "download-failed": (
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing"
        " traffic has been disabled. To enable hf.co look-ups and downloads online, set 'local_files_only' to False.",
    ),
    "cache-type-needs-flash-attention": (
        "llama_init_from_model: K cache type q8_0 with block size 32 does not divide n_embd_head_k=80",
    ),
    "gpu-out-of-memory": (
        "RuntimeError: CUDA error: out of memory",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
    "tokenizer-file-newer": (
        "ValueError: data did not match any variant of untagged enum StringOrArray at line 1 column 9",
        "ValueError: unknown variant `least_load`, expected one of `random`, `round_robin`, `cache_aware`",
        "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
    ),
    "file-system-failed": (
        "OSError: [Errno 5] Input/output error",
        "OSError: [Errno 107] Transport endpoint is not connected",
    ),
    "flash-attention-2-on-gb10": ("AttributeError: '_OpNamespace' '_vllm_fa2_C' object has no attribute 'varlen_fwd'",),
    "tokenizer-of-other-transformers": (
        "AttributeError: 'Qwen2Model' object has no attribute 'lm_head'",
        "AttributeError: Qwen3VLProcessor has no attribute fast",
    ),
    "compiler-killed": ("RuntimeError: the worker died due to signal 9",),
    "header-missing": ("x.c:1:10: fatal error: Python.h: No such file or directory",),
    "compilation-failed": (
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC",
        "torch._inductor.exc.InductorError: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch._inductor.exc.InductorError: PTXASError: PTXAS error: Internal Triton PTX codegen error",
    ),
    "gguf-architecture-unknown": ("llama_model_load: error loading model: unknown model architecture: 'clip'",),
    "llamacpp-assertion": (
        'x.cpp:9: GGML_ASSERT(t_layer_inp[il] != nullptr && "layer input tensor is null") failed',
        "ggml/src/ggml-backend-meta.cpp:535: GGML_ASSERT(ret.axis != GGML_BACKEND_SPLIT_AXIS_UNKNOWN) failed",
        "ggml/src/ggml-cuda/fattn-common.cuh:1110: GGML_ASSERT(max_blocks_per_sm > 0) failed",
    ),
    "llamacpp-flash-attention": ("fattn-mma-f16.cuh:9: fatal error: mma.h: No such file or directory",),
    "sglang-context-beyond-model": (
        "Warning: User-specified context_length (9000) is greater than the derived context_length (4096). This may",
    ),
    "sglang-deep-gemm-failed": ("RuntimeError: Assertion error (csrc/trt/plugin.hpp:50): n > 0",),
    "nccl-failed": (
        "DistBackendError: NCCL error in: x.cpp:77, unhandled cuda error. Cuda failure 2 'out of memory'",
        "DistBackendError: NCCL error in: x.cpp:3690, remote process exited or there was a network error",
    ),
    "graph-capture-failed": ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB",),
    "package-not-installed": ("importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",),
    "cuda-not-initialized": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver",
    ),
    "projector-not-loaded": (
        "clip_init: failed to load model '/mmproj.gguf': operator(): unable to find tensor v.blk.0.attn_out.weight",
    ),
    "command-missing-in-image": (
        'error getting credentials - err: exec: "docker-credential-desktop": executable file not found in $PATH',
        'level=warning msg="failed to find iptables" error="exec: \\"iptables\\": executable file not found in $PATH"',
        'OCI runtime create failed: unable to start container process: exec: "nvidia-smi": executable file not found',
    ),
    "name-missing-in-package": ("ImportError: cannot import name 'x' from partially initialized module 'y'",),
    "module-without-that-name": ("AttributeError: partially initialized module 'torch' has no attribute 'x'",),
    "quantized-experts-lack-backend": (
        "ValueError: moe_backend=deep_gemm_mega_moe is only supported for DeepSeek-V4 models.",
    ),
    "flashinfer-without-architecture": ("RuntimeError: No supported CUDA architectures found for major versions [9].",),
    "repository-gated": (
        "403 Forbidden: Please enable access to public gated repositories in your fine-grained token settings.",
    ),
    "image-not-fetched": (
        "RuntimeError: failed to do request: the scheduler is busy",
        'Error response from daemon: Get "https://registry-1.docker.io/v2/": toomanyrequests: You have reached your'
        " unauthenticated pull rate limit.",
    ),
    "port-of-processes-taken": (
        "DistNetworkError: The server socket has failed to bind to 10.0.0.9:29501 (errno: 99 - Cannot"
        " assign requested address).",
    ),
    "weights-not-divisible": (
        "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons: \n MarlinLinearKernel"
        " cannot implement due to: Weight input_size_per_partition = 8256 is not divisible by min_thread_k = 128.",
    ),
    "docker-firewall-rules-missing": ("iptables: Bad rule (does a matching rule exist in that chain?).",),
    "hub-access-forbidden": (
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://example.com/cat.png",
    ),
    "attention-backend-lacks-feature": (
        "NotImplementedError: MyModel does not support pooling.",
        "NotImplementedError: LoRA is not supported for flashinfer_cutlass_moe",
    ),
    "shared-image-cache-full": ("MemoryError",),
    "engine-start-timeout": ("RuntimeError: Did not receive response from front-end process within 5 minutes",),
}
"""Rows, and lines of other failures that contain words of theirs."""


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LIKE_OTHERS.items() for line in lines])
def test_words_of_a_row_in_another_failure_do_not_name_it(name: str, line: str) -> None:
    for end in (ProcessEnd(), ProcessEnd(1)):
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
    assert named([line], ProcessEnd(1)) == name


@pytest.mark.parametrize(
    "detail",
    ["  Value error, Expecting value: line 1 column 2 (char 1)", "  Value error, top_k must be at least 1 [x]"],
)
@pytest.mark.parametrize("kind", ["pydantic_core._pydantic_core.ValidationError: ", ""])
def test_what_pydantic_says_of_a_request_is_no_setting(detail: str, kind: str) -> None:
    text = [f"{kind}1 validation error for ChatCompletionRequest", detail]
    for log in (text, [f"(APIServer pid=1) ERROR 11-21 11:01:56 [x.py:1] {line}" for line in text]):
        assert named(log) is None
        assert named(log, ProcessEnd(1)) is None
    assert named([text[0].replace("ChatCompletionRequest", "ModelConfig"), detail], ProcessEnd(1)) is not None


def test_gloo_reports_the_end_of_another_process() -> None:
    log = [
        "(Worker_TP0 pid=1) ERROR 11-21 11:01:56 [x.py:1] ValueError: the moon is full",
        "(Worker_TP1 pid=2) ERROR 11-21 11:01:57 [x.py:1] RuntimeError: Gloo connectFullMesh failed with no error",
    ]
    found = explained(log, ProcessEnd(1))
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
    assert named(["Traceback (most recent call last):", '  File "/x/y.py", line 1, in z', *log], ProcessEnd(1)) == (
        "repository-gated"
    )
    assert named(log[4:], ProcessEnd(1)) == "no-such-directory-or-repository"


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
    found = explained(log, ProcessEnd(1))
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
    assert named(log, ProcessEnd(1), "llamacpp") == "gguf-header-unreadable"


def test_a_fault_of_another_program_on_the_gpu_is_not_the_engines() -> None:
    fault = "NVRM: Xid (PCI:0000:01:00): 31, pid={}, name={}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
    assert named([], ProcessEnd(139), kernel=(fault.format(812, "Xorg"),)) == "segmentation-fault"
    for process in ("VLLM::EngineCor", "llama-server", "<unknown>"):
        assert named([], ProcessEnd(139), kernel=(fault.format(812, process),)) == "gpu-address-fault"


def test_what_a_kernel_says_counts_more_than_that_it_crashed() -> None:
    crashed = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    assert named([crashed], ProcessEnd(1)) == "kernel-launch-failed"
    assert named(["This kernel only supports sm120.", crashed], ProcessEnd(1)) == "kernel-for-another-gpu"


def test_a_vocabulary_that_llamacpp_translates_hides_no_failure() -> None:
    differs = "common_speculative_are_compatible: draft model vocab type must match target model to use speculation"
    assert named([differs], ProcessEnd(1), "llamacpp") == "drafter-vocabulary-differs"
    assert named([differs, "E srv load_model: error: the moon is full"], ProcessEnd(1), "llamacpp") is None
    assert named([differs, "free(): invalid pointer"], ProcessEnd(134), "llamacpp") == "heap-corrupted"


def test_a_model_that_sglang_does_not_import_is_a_warning() -> None:
    ignored = (
        "[2026-10-26 14:54:00 TP3] Ignore import error when loading sglang.srt.models.x: libcuda.so.1: cannot open"
    )
    log = [f"{ignored} shared object file: No such file", "[2026-10-26 14:54:01 TP3] error: the moon is full"]
    assert named(log, ProcessEnd(1), "sglang") is None
    unknown = "ValueError: Model architectures ['XForCausalLM'] are not supported for now. Supported architectures: x"
    assert named([log[0], unknown], ProcessEnd(1), "sglang") == "sglang-architecture-unknown"
