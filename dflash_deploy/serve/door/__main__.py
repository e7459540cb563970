"""`python -m dflash_deploy.serve.door COMMAND`: runs an engine, with this process as its gateway.

The engine is a child with the arguments of COMMAND. It gets the path of its Unix socket and a key of its own in its
environment, in the variables that llama.cpp reads (common/arg.cpp), and none of the endpoint's keys. SIGTERM and SIGINT
are passed on to it, and this process ends with its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from dflash_deploy.serve.door.forward import Forward
from dflash_deploy.serve.door.listener import server_of
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.contract import Gaps
from dflash_deploy.serve.gateway.keys import KEYS_FILE, LIMITS_DIRECTORY
from dflash_deploy.serve.gateway.metering import Asks
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES, SECRETS_FILE, read_secrets
from dflash_deploy.serve.settings import Settings

SOCKET, KEY = "LLAMA_ARG_HOST", "LLAMA_API_KEY"
"""The variables with the engine's address, a path that ends in .sock, and with its key."""

REFUSED, NOT_LISTENING = 3, 1
"""Exit codes: settings that cannot work, as of `dflash_deploy.serve`; and a port that is taken."""

GAPS = Gaps(
    # those of stb_image that Pillow names (tools/mtmd/mtmd-helper.cpp)
    pictures=frozenset({"PNG", "JPEG", "GIF", "BMP", "PPM"}),
    describes_model=True,
    any_model=True,
    one_prompt=True,
    schema_of_chats=True,
    mistakes=re.compile("is required|not supported|unsupported|invalid|must be", re.IGNORECASE),
)
"""Of llama.cpp's server, each seen with b11549."""

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def engine_environment(environment: Mapping[str, str], socket: Path, key: str) -> dict[str, str]:
    """The environment of the engine: without the endpoint's secrets, with an address and a key of its own."""
    ours = {*SECRET_NAMES, SECRETS_FILE, KEYS_FILE, LIMITS_DIRECTORY}
    return {name: value for name, value in environment.items() if name not in ours} | {SOCKET: str(socket), KEY: key}


async def serve(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the engine and its door until the engine ends; returns its exit code, 128 + the number of a signal.

    Raises Refused without a valid key, and OSError if the address is taken.
    """
    settings = Settings(environment)
    key = secrets.token_urlsafe(32)
    # a directory that only this user can enter
    with TemporaryDirectory(prefix="dflash-") as private:
        socket = Path(private) / "engine.sock"
        forward = Forward(str(socket), key)
        door = DenyByDefault(forward, {**environment, **read_secrets(environment)}, asks=Asks.TIMINGS, gaps=GAPS)
        runner = web.ServerRunner(server_of(door))
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.dflash_bind, settings.dflash_port).start()
            engine = await asyncio.create_subprocess_exec(
                *command, env=engine_environment(environment, socket, key), preexec_fn=_die_with_parent
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, _pass_on, engine, number)
            code = await engine.wait()
        finally:
            await forward.close()
            await runner.cleanup()
    return code if code >= 0 else 128 - code


def _pass_on(engine: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        engine.send_signal(number)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Serve until the engine ends; returns the exit code."""
    try:
        return asyncio.run(serve(argv, os.environ))
    except Refused as refusal:
        print(f"dflash: {refusal.message} ({refusal.hint})", file=sys.stderr)
        return REFUSED
    except OSError as problem:
        print(f"dflash: the endpoint cannot be opened: {problem}", file=sys.stderr)
        return NOT_LISTENING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
