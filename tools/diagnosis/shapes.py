"""The frames around an error in the logs of each engine: what a post cuts off, with more than one process talking."""

from __future__ import annotations

from collections.abc import Callable

_SITE = "/usr/local/lib/python3.12/dist-packages"


def _each(prefix: str, text: str) -> str:
    return "\n".join(prefix + line for line in text.splitlines())


_API = "(APIServer pid=1) "
_CORE = "(EngineCore pid=274) "
_BANNER = f"""\
{_API}INFO 08-03 17:45:30 [utils.py:299]   █▄█▀ █     █     █     █  model   /models/target
{_API}WARNING 08-03 17:45:31 [envs.py:1710] Unknown environment variable VLLM_PORT_RANGE: ignored
{_API}INFO 08-03 17:45:33 [model.py:549] Resolved architecture: Qwen3_5ForConditionalGeneration"""
_FRAMES = f"""\
Traceback (most recent call last):
  File "{_SITE}/vllm/v1/engine/core.py", line 1110, in run_engine_core
    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{_SITE}/vllm/v1/engine/core.py", line 128, in __init__
    kv_cache_config = self._initialize_kv_caches(vllm_config)"""
_API_FRAMES = f"""\
Traceback (most recent call last):
  File "/usr/local/bin/vllm", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "{_SITE}/vllm/entrypoints/cli/main.py", line 73, in main
    args.dispatch_function(args)"""
_ECHO = _each(
    _API,
    f"{_API_FRAMES}\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
)
_LOADING = "Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:01<00:00,  2.50it/s]"


def _vllm_core(text: str) -> str:
    """The engine's core raises, tells it twice, and the server echoes it."""
    told = f"EngineCore failed to start.\n{_FRAMES}\n{text}"
    log = _each(f"{_CORE}ERROR 08-03 17:46:10 [core.py:1136] ", told)
    return "\n".join((_BANNER, _LOADING, log, f"{_CORE}Process EngineCore:", _each(_CORE, f"{_FRAMES}\n{text}"), _ECHO))


def _vllm_worker(text: str) -> str:
    """Two workers raise at the same time, line by line, and the core and the server echo it."""
    told = f"WorkerProc hit an exception.\n{_FRAMES}\n{text}"
    mixed = [
        f"(Worker_TP{rank} pid={364 + rank}) ERROR 04-18 15:45:48 [multiproc_executor.py:870] {line}"
        for line in told.splitlines()
        for rank in range(2)
    ]
    failed = text.splitlines()[0].partition(": ")[2]
    echo = f"RuntimeError: Worker failed with error '{failed}', please check the stack trace above for the root cause"
    core = _each(f"{_CORE}ERROR 04-18 15:45:49 [core.py:1136] ", f"EngineCore failed to start.\n{_FRAMES}\n{echo}")
    warning = "resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked objects"
    return "\n".join((_BANNER, *mixed, core, _ECHO, warning))


def _vllm_config(text: str) -> str:
    """Pydantic refuses the settings in the server."""
    refused = "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig"
    further = "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    return "\n".join((_BANNER, _each(_API, f"{_API_FRAMES}\n{refused}\n{text}\n{further}")))


def _vllm_api(text: str) -> str:
    return "\n".join((_BANNER, _each(_API, f"{_API_FRAMES}\n{text}")))


def _vllm_request(text: str) -> str:
    """The engine serves, and a request fails."""
    serving = f"{_API}INFO:     Application startup complete."
    told = _each(f"{_API}ERROR 04-08 13:30:11 [serving.py:214] ", f"{_API_FRAMES}\n{text}")
    access = f'{_API}INFO:     172.18.0.1:39264 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request'
    return "\n".join((_BANNER, serving, told, access))


def _vllm_import(text: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "/usr/local/bin/vllm", line 4, in <module>\n'
        "    from vllm.entrypoints.cli.main import main\n"
        f'  File "{_SITE}/vllm/__init__.py", line 14, in <module>\n    import vllm.env_override  # noqa: F401\n{text}'
    )


def _vllm_killed(text: str) -> str:
    """A native library ends a worker, without an exception of its own; the core reports the loss."""
    lost = (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
    )
    return "\n".join((_BANNER, _LOADING, text, _each(_API, f"{_API_FRAMES}\n{lost}")))


def _vllm_nested(text: str) -> str:
    """A log collector writes the core's prefix behind the server's."""
    told = _each(f"{_API}{_CORE}ERROR 02-06 16:34:06 [core.py:936] ", f"EngineCore failed to start.\n{text}")
    return "\n".join((_BANNER, told, f"{_API}{_CORE}Process EngineCore:", _ECHO))


def _docker_desktop(text: str) -> str:
    return f"2025-05-30 18:28:20.000 | INFO 05-30 18:28:20 [utils.py:1] version 0.9.0\n{text}"


_SGLANG = """\
[2026-06-17 09:57:01] server_args=ServerArgs(model_path='/models/target', log_level='info', api_key=None)
[2026-06-17 09:57:05 TP0] Load weight begin. avail mem=22.46 GB
[2026-06-17 09:57:12 TP0] Load weight end. type=Qwen3_5ForConditionalGeneration, dtype=torch.bfloat16"""


def _sglang(text: str) -> str:
    """A scheduler fails, and the parent kills the whole group, itself included."""
    return "\n".join(
        (
            _SGLANG,
            "[2026-06-17 09:57:14 TP0] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/sgl-workspace/sglang/srt/managers/scheduler.py", line 4046, in run_scheduler_process',
            "    scheduler = Scheduler(",
            text,
            "",
            "[2026-06-17 09:57:15] Received sigquit from a child process. It usually means the child failed.",
            "[2026-06-17 09:57:15] kill_process_tree called: parent_pid=1, include_parent=True, pid=1",
        )
    )


def _sglang_import(text: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "/sgl-workspace/sglang/python/sglang/launch_server.py", line 25, in <module>\n'
        f"    server_args = prepare_server_args(sys.argv[1:])\n{text}"
    )


_LLAMACPP = """\
0.00.100.001 I log_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.110.001 I srv    load_model: loading model '/models/target.gguf'
0.00.120.001 W load: control-looking token: 128247 '</s>' was not control-type; this is probably a bug in the model"""
_LLAMACPP_END = """\
0.00.470.001 I srv    operator(): operator(): cleaning up before exit...
0.00.480.001 E main: exiting due to model loading error"""


def _llamacpp_abort(text: str) -> str:
    return "\n".join(
        (
            _LLAMACPP,
            "0.05.120.001 I main: server is listening on http://0.0.0.0:8080",
            "0.09.120.001 I slot launch_slot_: id  0 | task 0 | processing task",
            text,
            "/app/libggml-base.so(+0x1a1c8)[0x7f79fa0481c8]",
            "/app/libggml-base.so(ggml_abort+0x11d)[0x7f79fa04872d]",
            "Aborted (core dumped)",
        )
    )


SHAPES: dict[str, Callable[[str], str]] = {
    "vllm-core": _vllm_core,
    "vllm-worker": _vllm_worker,
    "vllm-config": _vllm_config,
    "vllm-api": _vllm_api,
    "vllm-request": _vllm_request,
    "vllm-import": _vllm_import,
    "vllm-killed": _vllm_killed,
    "vllm-nested": _vllm_nested,
    "vllm-docker-desktop": _docker_desktop,
    "sglang": _sglang,
    "sglang-import": _sglang_import,
    "sglang-args": _sglang_import,
    "llamacpp": lambda text: f"{_LLAMACPP}\n{text}\n{_LLAMACPP_END}",
    "llamacpp-old": lambda text: f"build: 6907 (bea04522f)\nmain: loading model\n{text}",
    "llamacpp-abort": _llamacpp_abort,
    "docker": str,
    "plain": str,
}

# The exit code that comes with a frame; all others end with 1.
EXITS = {"sglang": 137, "vllm-request": None, "docker": 1}
