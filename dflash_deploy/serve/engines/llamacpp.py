"""llama.cpp: its architectures, its routes, and the arguments of `llama-server`.

An architecture is `general.architecture` in a GGUF's header. The server has no API description to read the routes from.
Source: llama.cpp tools/server/server.cpp, with the routes of older releases and of the buun fork. `x` is any word.

The arguments are for upstream from b10068 on and for the buun fork. They differ in DFlash: upstream calls the method
`draft-dflash` and its limit `--spec-draft-n-max`, the fork `dflash` and `--draft-max`; the fork keeps a short context
for the drafter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import ClassVar

from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.engines.base import (
    DOOR,
    IN_ENV,
    Build,
    Engine,
    Launch,
    Reserved,
    drafter_weights,
    reserved,
)
from dflash_deploy.serve.engines.counters import MetricNames
from dflash_deploy.serve.engines.installed import (
    InstalledEngine,
    knows_option,
    llama_server_at,
    llama_server_of_wheel,
)
from dflash_deploy.serve.field import LLAMACPP
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import Speculation

# The build that knows these (src/llama-arch.cpp), without `clip`, that of a projector; earlier builds know fewer.
OF_BUILD = "b11549"

_NAMES = """
llama llama4 deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder refact bert modern-bert nomic-bert
nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe
qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe clef qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion
internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding gemma-embedding2
starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer
openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet t5
t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7
granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm bailingmoe bailingmoe2
bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3
hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss grovemoe apertus minimax-m2 cogvlm
rnd1 pangu-embedded mistral3 mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder kimi-linear kimi-k3
glm5-next talkie mellum eagle3 minimax-m3 dflash nanbeige qwen3tts pockettts minimax-01 hrm_text k2-horizon
"""

ARCHITECTURES = frozenset(_NAMES.split())


_READ = (
    *("/", "/health", "/v1/health", "/metrics", "/props", "/models", "/v1/models", "/models/sse", "/api/tags"),
    *("/lora-adapters", "/slots", "/v1/stream", "/cors-proxy", "/tools"),
)

_WRITTEN = (
    *("/props", "/api/show", "/completion", "/completions", "/v1/completions", "/models", "/models/load"),
    *("/models/unload", "/chat/completions", "/v1/chat/completions", "/api/chat", "/v1/chat/completions/control"),
    *("/responses", "/v1/responses", "/audio/transcriptions", "/v1/audio/transcriptions", "/v1/messages", "/infill"),
    *("/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    *("/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens", "/responses/input_tokens"),
    *("/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/v1/messages/count_tokens"),
    *("/lora-adapters", "/slots/x", "/v1/streams/lookup", "/v1/systemone", "/cors-proxy", "/tools"),
)

# Each method with its path.
ROUTES = (
    *(("GET", path) for path in _READ),
    *(("POST", path) for path in _WRITTEN),
    *(("DELETE", path) for path in ("/models", "/v1/stream")),
)


LLAMA_SERVER = "/app/llama-server"  # the server's path in llama.cpp's images
ON_PATH = "llama-server"  # the program that is looked up on the PATH
QUESTION = "dflash_deploy.serve.engines.llamacpp_question"  # the module that asks the server's parser

# Libraries of llama.cpp, by the word after `libggml-`, that use no GPU of this machine.
NOT_FOR_GPUS = frozenset({"base", "blas", "cpu", "rpc"})

FORK_DRAFT_CONTEXT = 256  # the context of the drafter on the fork's card, and its default (arg.cpp of 1c4788192)

# Caches of a drafting sequence: the fork has a backup of each (n_ctx_seq in its log).
#
# `--kv-unified` would share one, but then 1c4788192 does not refuse a prompt beyond the context: it never answers.
FORK_CACHES = 2

FORK_LEAST_MICRO_BATCH = 64
# The fork's pairs of batch and micro-batch: 256 and 64 on its card, 2048 and 512 in its log for faster prompts.
FORK_BATCHES = 4


class Llamacpp(Engine):
    """The server of upstream llama.cpp."""

    name = "llamacpp"
    captures_passes = False
    title = "llama.cpp"
    program = ("llama-server",)
    template = LLAMACPP
    compiled = ""
    abbreviates = False
    fragments: ClassVar[tuple[str, ...]] = ("llamacpp",)
    step_times = {"timings_per_token": True}  # noqa: RUF012 - as declared in the base class
    routes: ClassVar[tuple[str, ...]] = tuple(sorted({path for _, path in ROUTES}))
    metrics = MetricNames(
        "llamacpp",
        "tokens_predicted_total",
        "requests_processing",
        "requests_deferred",
        steps="n_decode_total",
        tpot_counters=("tokens_predicted_seconds_total", "tokens_predicted_total"),
    )
    # the gateway refuses them: llama.cpp ignores the name (server-common.cpp of b11434)
    refuses_other_models = True
    utilization = None
    # its log: `K (q8_0)` of the target beside `K (f16)` of the drafter, and all cells before the first request
    drafter_kv_cache_dtype = "f16"
    whole_contexts = True
    smaller_caches = ("q8_0", "q4_0")
    most_at_once = 512  # the default of --ubatch-size
    # the last 4 tokens have a step of their own: the state before them is kept (server-context.cpp, llama.cpp#20288)
    stateful_prompt_steps = 2
    counts_by_position = True
    counts_every_draft = True
    rereads = "tokens"
    windows_in_header = True
    quantized_drafters = True
    architectures = ARCHITECTURES
    architectures_of = OF_BUILD
    dflash_option: ClassVar[bytes] = b"draft-dflash"
    """An option that a server with DFlash has: upstream from b10068 on."""
    reserved_flags: ClassVar[Mapping[str, Reserved]] = {
        "--api-key": reserved(Settings.vllm_api_key, reason=IN_ENV),
        "--api-key-file": reserved(Settings.vllm_api_key),
        "--hf-token": reserved(Settings.hf_token, reason=IN_ENV),
        "-hft": reserved(Settings.hf_token, reason=IN_ENV),
        "--host": reserved(Settings.dflash_bind),
        "--port": reserved(Settings.dflash_port),
        "--model": reserved(Settings.model_host_path, Settings.model_file),
        "-m": reserved(Settings.model_host_path, Settings.model_file),
        "--mmproj": reserved(Settings.mmproj_file),
        "-mm": reserved(Settings.mmproj_file),
        "--cors-origins": reserved(Settings.allowed_origins),
        "--alias": reserved(Settings.served_model_name),
        "-a": reserved(Settings.served_model_name),
        "--model-draft": reserved(Settings.dflash_drafter),
        "--spec-draft-model": reserved(Settings.dflash_drafter),
        "-md": reserved(Settings.dflash_drafter),
        "--spec-type": reserved(Settings.dflash_drafter),
        "--spec-draft-n-max": reserved(Settings.dflash_num_spec_tokens),
        "--draft-max": reserved(Settings.dflash_num_spec_tokens),
        "--ctx-size": reserved(Settings.max_model_len, Settings.max_num_seqs),
        "-c": reserved(Settings.max_model_len, Settings.max_num_seqs),
        "--parallel": reserved(Settings.max_num_seqs),
        "-np": reserved(Settings.max_num_seqs),
        "--batch-size": reserved(Settings.max_num_batched_tokens),
        "-b": reserved(Settings.max_num_batched_tokens),
        "--cache-ram": reserved(Settings.prompt_cache_mib),
        "-cram": reserved(Settings.prompt_cache_mib),
        "--cache-type-k": reserved(Settings.kv_cache_dtype),
        "-ctk": reserved(Settings.kv_cache_dtype),
        "--cache-type-v": reserved(Settings.kv_cache_dtype),
        "-ctv": reserved(Settings.kv_cache_dtype),
        "--spec-draft-type-k": reserved(Settings.dflash_kv_cache_dtype),
        "-ctkd": reserved(Settings.dflash_kv_cache_dtype),
        "--cache-type-k-draft": reserved(Settings.dflash_kv_cache_dtype),
        "--spec-draft-type-v": reserved(Settings.dflash_kv_cache_dtype),
        "-ctvd": reserved(Settings.dflash_kv_cache_dtype),
        "--cache-type-v-draft": reserved(Settings.dflash_kv_cache_dtype),
    }

    def arguments(self, settings: Settings, build: Build) -> list[str]:
        """The arguments of the server. The door gives it its address and its key."""
        self.check_extra_args(settings)
        return _arguments(settings, build, fork=False)

    def launch(self, settings: Settings, environment: Mapping[str, str]) -> Launch:
        """The image's server, else the installed one, behind the door (`dflash_deploy.serve.door`)."""
        server = self._server(settings)
        arguments = self.arguments(settings, Build(server.version, server.cpu))
        # the door checks them too, but its message comes after the first lines of the log
        api_keys(read_secrets(environment))
        return Launch(
            title=f"{' '.join(filter(None, (self.title, server.version)))}: llama-server",
            command=(sys.executable, "-m", DOOR, LLAMACPP, *server.command(arguments)),
            arguments=tuple(arguments),
            environment=dict(environment),
        )

    def question(self, settings: Settings, environment: Mapping[str, str]) -> Launch | None:
        """The server's own parser (`llamacpp_question`): llama.cpp decides the rest from the weights."""
        server = self._server(settings)
        arguments = self.arguments(settings, Build(server.version, server.cpu))
        program = server.command([])
        return Launch(
            title=f"{self.title}: arguments",
            command=(sys.executable, "-m", QUESTION, str(len(program)), *program, *arguments),
            arguments=tuple(arguments),
            environment=dict(environment),
        )

    def _server(self, settings: Settings) -> InstalledEngine:
        if Path(LLAMA_SERVER).is_file():
            cpu = only_for_processors(Path(LLAMA_SERVER).parent)
            return InstalledEngine(LLAMA_SERVER, "", cpu=cpu, program=(LLAMA_SERVER,))
        found = self.installed(settings)
        if found is None:
            raise Refused(
                f"{self.title} is not installed beside this Python, and no llama-server of it is on the PATH",
                hint=self.how_to_install("llamacpp"),
            )
        return found

    def installed(self, settings: Settings | None = None) -> InstalledEngine | None:
        """The server that LLAMA_SERVER names, else the one in the wheel of `xllamacpp`, else the one on the PATH."""
        if settings is not None and settings.llama_server:
            return llama_server_at(settings.llama_server, self.dflash_option)
        return self._of_wheel() or llama_server_at(ON_PATH, self.dflash_option)

    def _of_wheel(self) -> InstalledEngine | None:
        return llama_server_of_wheel()

    def shortcomings(self, server: Path) -> list[str]:
        """A missing server, one without DFlash (its option is in the server or a library beside it), a missing door."""
        if not server.is_file():
            return [f"{server} is missing"]
        missing = f"{server} has no option {self.dflash_option.decode()}"
        found = [] if knows_option(server, self.dflash_option) else [missing]
        return found if util.find_spec("aiohttp") else [*found, "aiohttp is missing, which the gateway needs"]


class LlamacppBuun(Llamacpp):
    """spiritbuun/buun-llama-cpp: other arguments for DFlash, and drafters in another GGUF format."""

    name = "llamacpp-buun"
    title = "llama.cpp (buun fork)"
    fragments: ClassVar[tuple[str, ...]] = ("llamacpp", "llamacpp-buun")
    counts_by_position = False
    counts_every_draft = False
    drafting_sequences = 1
    drafting_caches = FORK_CACHES
    # the state, and one to roll back to; upstream keeps one for every draft token (`rs_seq` in its log)
    recurrent_states = 2
    architectures_of = ""
    dflash_option: ClassVar[bytes] = b"dflash-max-slots"

    def arguments(self, settings: Settings, build: Build) -> list[str]:
        """The arguments of the server, as the fork names them."""
        self.check_extra_args(settings)
        return _arguments(settings, build, fork=True)

    def _of_wheel(self) -> InstalledEngine | None:
        # no package index has the fork
        return None

    def how_to_install(self, extra: str) -> str:
        """No package index has the fork."""
        return f"build its llama-server, and put it on the PATH or name it in {Settings.llama_server}"


def only_for_processors(directory: Path) -> bool:
    """Whether a server is built for processors only: the libraries beside it are its backends, such as libggml-cuda.so.

    llama.cpp's images are built so (GGML_BACKEND_DL in .devops). Without any backend beside it, as in the fork's
    image, the server contains its backends, and one for GPUs among them.
    """
    names = (file.name.removeprefix("libggml-").split(".")[0] for file in directory.glob("libggml-*.so*"))
    backends = {name.split("-")[0] for name in names}
    return "cpu" in backends and backends <= NOT_FOR_GPUS


def _arguments(settings: Settings, build: Build, *, fork: bool) -> list[str]:
    if settings.several_machines:
        raise Refused(
            "llama.cpp serves from one machine only", hint=f"empty {Settings.nodes}, or choose another engine"
        )
    kind = settings.kv_cache_dtype
    return [
        "--model",
        settings.target,
        *(["--alias", ",".join(settings.served_model_name)] if settings.served_model_name else []),
        # its web page needs no key
        "--metrics",
        "--no-webui",
        *_limits(settings, build, fork=fork),
        "--flash-attn",
        "on",
        *(("--cache-type-k", kind, "--cache-type-v", kind) if kind not in {"", "auto"} else ()),
        *_prompting(settings),
        *_speculation(settings.speculation, build, fork=fork),
        *settings.extra_args,
    ]


def _limits(settings: Settings, build: Build, *, fork: bool) -> Iterator[str]:
    sequences = settings.max_num_seqs or 1
    yield from ("--parallel", str(sequences))
    if settings.max_model_len is not None:
        # llama.cpp divides the context among the sequences, and the fork also among their backups
        parts = sequences * (FORK_CACHES if fork and settings.speculation is not None else 1)
        yield from ("--ctx-size", str(settings.max_model_len * parts))
    if settings.max_num_batched_tokens is not None:
        yield from ("--batch-size", str(settings.max_num_batched_tokens))
        if fork and settings.speculation is not None:
            micro = max(settings.max_num_batched_tokens // FORK_BATCHES, FORK_LEAST_MICRO_BATCH)
            yield from ("--ubatch-size", str(micro))
    if not fork:
        # else 8 GiB of the machine's memory, which a GPU may share (llama.cpp#16391; b11549, common/arg.cpp)
        yield from ("--cache-ram", str(settings.prompt_cache_mib))
    if not build.cpu:
        # all layers on the GPU: the plan refuses a model that does not fit, instead of running it slowly
        yield from ("--n-gpu-layers", "99")


def _prompting(settings: Settings) -> Iterator[str]:
    yield "--jinja"
    if settings.projector is not None:
        yield from ("--mmproj", settings.projector)
    if settings.enable_thinking is not None:
        yield from ("--chat-template-kwargs", json.dumps({"enable_thinking": settings.enable_thinking}))


def _speculation(speculation: Speculation | None, build: Build, *, fork: bool) -> Iterator[str]:
    if speculation is None:
        return
    weights = drafter_weights(speculation, "llama.cpp")
    if fork:
        if speculation.kv_cache_dtype:
            raise Refused(
                "the fork has no type for the drafter's cache", hint=f"empty {Settings.dflash_kv_cache_dtype}"
            )
        yield from ("--model-draft", weights, "--spec-type", "dflash", "--draft-max", str(speculation.draft_tokens))
        yield from ("--ctx-size-draft", str(FORK_DRAFT_CONTEXT))
        if not build.cpu:
            yield from ("--n-gpu-layers-draft", "99")
        return
    yield from ("--spec-draft-model", weights, "--spec-type", "draft-dflash")
    yield from ("--spec-draft-n-max", str(speculation.draft_tokens))
    if (kept := speculation.kv_cache_dtype) not in {"", "auto"}:
        yield from ("--spec-draft-type-k", kept, "--spec-draft-type-v", kept)
    if not build.cpu:
        yield from ("--spec-draft-ngl", "99")
