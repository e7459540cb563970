"""Lines as Compose and the engines write them, and the phase that they begin.

vLLM's are of real logs (0.32 on the CPU) but for the bars of a GPU, and the buun fork's of a real log (1c4788192 on the
CPU). SGLang's and llama.cpp's are of logs that were posted.
"""

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.lines import LONGEST_LINE
from dflash_deploy.startup.progress import Phases, Step, message_of

LINES = [
    ("compose", " Image dflash-deploy/vllm:0.33 Pulling ", Step("pulling the image")),
    ("compose", "#12 [engine 3/8] RUN pip install", Step("building the image", 3, 8)),
    ("compose", "Step 4/19 : COPY images/vllm /opt/dflash", Step("building the image", 4, 19)),
    ("compose", " Container dflash-1-engine-1  Created", Step("creating the container")),
    ("vllm", "dflash: vLLM 0.32.0: vllm serve /models/target --host 0.0.0.0", Step("starting vLLM")),
    (
        "vllm",
        "(APIServer pid=23767) INFO 11-21 11:01:24 [model.py:733] Resolved architecture: DFlashDraftModel",
        Step("reading the configuration"),
    ),
    (
        "vllm",
        "(APIServer pid=31877) INFO 11-23 08:23:15 [kernel.py:467] Final IR op priority after setting platform "
        "defaults: IrOpPriorityConfig(rms_norm=['native'])",
        Step("starting the engine process"),
    ),
    (
        "vllm",
        "(EngineCore pid=1) INFO 11-21 11:01:44 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: ",
        Step("starting the engine process"),
    ),
    (
        "vllm",
        "(Worker pid=1) INFO 11-21 11:01:44 [gpu_model_runner.py:1] Starting to load model /models/target...",
        Step("loading the target"),
    ),
    (
        "vllm",
        "(Worker pid=28902) INFO 11-21 13:16:49 [cpu_model_runner.py:75] Loading drafter model...",
        Step("loading the drafter"),
    ),
    (
        "vllm",
        "(EngineCore pid=24019) INFO 11-21 11:01:58 [kv_cache_utils.py:2327] CPU KV cache size: 349,525 tokens",
        Step("sizing the KV cache"),
    ),
    (
        "vllm",
        "Capturing CUDA graphs (decode, FULL):  43%|████▎     | 3/7 [00:01<00:01,  2.61it/s]",
        Step("capturing CUDA graphs", 3, 7),
    ),
    (
        "vllm",
        "(EngineCore pid=24019) INFO 11-21 11:02:03 [core.py:402] init engine (profile, create kv cache, warmup model) "
        "took 5.02 s",
        Step("warming up"),
    ),
    (
        "vllm",
        "(APIServer pid=23767) INFO 11-21 11:02:06 [entry.py:140] Starting vLLM server on http://127.0.0.1:8411",
        Step("opening the endpoint"),
    ),
    ("vllm", "INFO:     Application startup complete.", Step("opening the endpoint")),
    ("sglang", "[2026-02-09 03:50:20] Load weight begin. avail mem=78.60 GB", Step("loading the weights")),
    (
        "sglang",
        "[2026-02-09 03:51:05] Capture cuda graph begin. This can take up to several minutes. avail mem=58.08 GB",
        Step("capturing CUDA graphs"),
    ),
    (
        "sglang",
        "Capturing batches (bs=1 avail_mem=1.58 GB): 100%|██████████| 4/4 [00:00<00:00,  6.09it/s]",
        Step("capturing CUDA graphs", 4, 4),
    ),
    ("sglang", "[2026-02-09 03:51:44] The server is fired up and ready to roll!", Step("opening the endpoint")),
    (
        "sglang",
        "[2026-11-28 21:08:30] INFO:     Uvicorn running on http://127.0.0.1:18450 (Press CTRL+C to quit)",
        Step("warming up"),
    ),
    (
        "llamacpp",
        "0.00.325.555 I load_tensors: loading model tensors, this can take a while... (mmap = true)",
        Step("loading the weights"),
    ),
    (
        "llamacpp",
        "0.00.047.192 W common_init_from_params: warming up the model with an empty run - please wait ...",
        Step("warming up"),
    ),
    ("llamacpp", "main: server is listening on http://0.0.0.0:8000", Step("opening the endpoint")),
    ("llamacpp", "0.00.221.347 I llama_server: model loaded", Step("opening the endpoint")),
    ("llamacpp", "0.00.221.361 I llama_server: listening on http://127.0.0.1:8000", Step("opening the endpoint")),
    ("llamacpp-buun", "srv    load_model: loading model '/models/target.gguf'", Step("loading the weights")),
    ("llamacpp-buun", "srv    load_model: loading draft model '/models/drafter.gguf'", Step("loading the weights")),
    ("llamacpp-buun", "llama_context: constructing llama_context", Step("sizing the KV cache")),
    (
        "llamacpp-buun",
        "common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)",
        Step("warming up"),
    ),
    ("llamacpp-buun", "main: server is listening on unix:///tmp/dflash-x/engine.sock", Step("opening the endpoint")),
]


@pytest.mark.parametrize(("by", "line", "step"), LINES)
def test_each_line_begins_its_phase(by: str, line: str, step: Step) -> None:
    assert Phases(by).after([line], Step("starting")) == step


def test_every_phase_of_the_catalog_but_the_seldom_ones_is_shown_here() -> None:
    shown = {(by, step.phase) for by, _, step in LINES}
    known = {(by, mark.phase) for mark in load_catalog().phases for by in mark.by if mark.phase}
    assert known - shown == {
        ("vllm", "compiling"),
        # tests/parsers/test_sglang_source.py
        ("sglang", "starting SGLang"),
        ("sglang", "sizing the KV cache"),
        ("llamacpp", "sizing the KV cache"),
    }


def test_lines_of_the_server_and_of_a_worker_beside_a_later_phase_leave_it() -> None:
    phases, loading = Phases("vllm"), Step("loading the drafter")
    for line in (
        "(Worker pid=32536) INFO 11-23 08:23:45 [kernel.py:467] Final IR op priority after setting platform: x",
        "(EngineCore pid=32418) INFO 11-23 08:23:53 [kernel.py:467] Final IR op priority after setting platform: x",
        "(APIServer pid=31877) INFO 11-23 08:23:59 [base.py:280] Multi-modal warmup completed in 40.190s",
    ):
        assert phases.after([line], loading) == loading


def test_shards_are_counted_within_their_phase() -> None:
    phases = Phases("vllm")
    loading = phases.after(["Starting to load model /x"], Step("starting"))
    third = phases.after(
        ["Loading safetensors checkpoint shards:  43% Completed | 3/7 [00:12<00:16, 4.01s/it]"], loading
    )
    assert third == Step("loading the target", 3, 7)
    # what says nothing new leaves it; the next phase counts anew
    assert phases.after(["INFO 11-21 11:01:44 [x.py:1] something new", ""], third) == third
    assert phases.after(["Loading drafter model..."], third) == Step("loading the drafter")


@pytest.mark.parametrize(
    "line",
    [
        "(Worker pid=1) INFO 11-21 12:00:01 [backends.py:1105] Using cache directory: /cache for vLLM's torch.compile",
        "(Worker pid=1) INFO 11-21 12:00:09 [backends.py:399] Compiling a graph for compile range (1, 64) takes 7.1 s",
        "(Worker pid=1) INFO 11-21 12:00:11 [monitor.py:48] torch.compile took 9.90 s in total",
    ],
)
def test_compiling_is_told_from_its_beginning(line: str) -> None:
    assert Phases("vllm").after([line], Step("loading the drafter")).phase == "compiling"


def test_the_message_is_what_stays_of_a_line() -> None:
    line = "(Worker pid=23) INFO 11-21 11:01:56 [default_loader.py:501] Loading weights took 0.08 seconds"
    assert message_of(line) == "Loading weights took 0.08 seconds"
    assert (
        message_of("0.00.121.986 I srv          init: listening on 127.0.0.1")
        == "srv          init: listening on 127.0.0.1"
    )
    assert message_of("plain text") == "plain text"
    coloured = "[2026-11-28 21:06:25] \x1b[1;33m'--disable-cuda-graph' is deprecated.\x1b[0m"
    assert message_of(coloured) == "'--disable-cuda-graph' is deprecated."


@pytest.mark.parametrize(
    "line",
    [
        "Loading safetensors checkpoint shards:  50% Completed | " + "9" * 5000 + "/7 [00:01<00:01]",
        "Loading safetensors checkpoint shards:  50% Completed | 1/" + "9" * 1000 + " [00:01<00:01]",
    ],
)
def test_a_number_that_counts_nothing_is_left_out(line: str) -> None:
    assert Phases("vllm").after([line], Step("loading", 1, 2)) == Step("loading", 1, 2)


def test_only_the_beginning_of_a_long_line_is_searched() -> None:
    # a search in all of it takes hours
    line = "Capturing CUDA graph" * 500_000
    assert (
        Phases("vllm").after([line], Step("")).phase == Phases("vllm").after(["Capturing CUDA graph"], Step("")).phase
    )
    assert len(message_of(line)) == LONGEST_LINE
