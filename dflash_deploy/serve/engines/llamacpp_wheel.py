"""`python -m dflash_deploy.serve.engines.llamacpp_wheel ARGUMENTS`: the server in the wheel of `xllamacpp`.

The wheel holds llama.cpp's server as a library, without a program. This module reads the arguments of `llama-server`,
and its environment variables, with llama.cpp's own parser from that library, and runs the server until SIGTERM.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# `bool common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))`.
PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"

# `common_log * common_log_main()`, and `void common_log_pause(common_log *)`, which waits until all of it is written.
#
# A thread writes the log, and llama.cpp's exit does not wait for it (ggml-org/llama.cpp#22142, #25504): the last
# lines, which tell why a model cannot be loaded, were lost at times.
LOG, END_LOG = "_Z15common_log_mainv", "_Z16common_log_pauseP10common_log"

LLAMA_EXAMPLE_SERVER = 12  # the program whose options are parsed (llama.cpp b11549, common/common.h)
_OBJECT = object.__basicsize__  # bytes of a Python object before what it holds, which is the `common_params`


class OtherBuild(RuntimeError):
    """Raised if the wheel is not laid out as expected."""


def parameters(arguments: list[str]) -> Any:
    """The server's parameters as llama.cpp's parser reads them. It ends the process itself for a wrong argument.

    Raises OtherBuild if the parser writes to another place than the one that the library reads.
    """
    wheel = import_module("xllamacpp")
    parse = _library()[PARSE]
    parse.restype = ctypes.c_bool
    tried = wheel.CommonParams()
    if not _parsed(parse, ["--port", "4711"], tried) or tried.port != 4711:
        raise OtherBuild(f"the library of xllamacpp {wheel.__version__} is not laid out as expected")
    read = wheel.CommonParams()
    if not _parsed(parse, arguments, read):
        sys.exit(1)
    return read


def _library() -> ctypes.CDLL:
    (file,) = Path(str(import_module("xllamacpp").__file__)).parent.glob("xllamacpp*.so")
    return ctypes.CDLL(str(file))


def _end_log() -> None:
    """Write what is left of the log, and write no more."""
    library = _library()
    log_of, end = library[LOG], library[END_LOG]
    log_of.restype, end.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    end(log_of())


def _parsed(parse: Any, arguments: list[str], target: object) -> bool:
    words = [b"llama-server", *(argument.encode() for argument in arguments)]
    vector = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    return bool(parse(len(words), vector, ctypes.c_void_p(id(target) + _OBJECT), LLAMA_EXAMPLE_SERVER, None))


def main(argv: list[str]) -> int:
    """Serve until SIGTERM or SIGINT. Returns 1 if the model cannot be loaded; the log says why."""
    stops = {signal.SIGTERM, signal.SIGINT}
    # before the server's threads start: they inherit it, and only `sigwait` takes the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        server = import_module("xllamacpp").Server(parameters(argv))
    except RuntimeError as problem:
        _end_log()
        print(f"llama-server: {problem}", file=sys.stderr, flush=True)
        return 1
    signal.sigwait(stops)
    del server
    _end_log()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
