"""`python -m dflash_deploy.serve.door ENGINE COMMAND`: runs an engine, with this process as its gateway.

The engine is a child with the arguments of COMMAND. It gets the path of a Unix socket and a key of its own, and none of
the endpoint's keys. SIGTERM and SIGINT are passed on to it, and this process ends with its exit code. With IDLE_MINUTES
the engine ends and starts again while this process stays (`awake`).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from dflash_deploy.serve.door.awake import Awake, WakeTimes
from dflash_deploy.serve.door.forward import Forward
from dflash_deploy.serve.door.listener import server_of
from dflash_deploy.serve.field import LLAMACPP, VLLM
from dflash_deploy.serve.gateway.asgi import ANTHROPIC
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.contract import CHATS, NO_QUIRKS, RESPONSES, EngineQuirks
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.gateway.metering import Asks
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES, SECRETS_FILE, read_secrets
from dflash_deploy.serve.settings import Settings

# Exit codes: settings that cannot work, as of `dflash_deploy.serve`; and a port that is taken.
REFUSED, NOT_LISTENING = 3, 1


@dataclass(frozen=True)
class Behind:
    """An engine behind the door: the variables and the option that take its socket and its key, and how it is asked."""

    socket_variable: str
    socket_option: str
    key_variable: str
    quirks: EngineQuirks
    asks: Asks | None = None

    def variables(self, socket: Path, key: str) -> dict[str, str]:
        """The variables of its environment."""
        return {self.key_variable: key, **({self.socket_variable: str(socket)} if self.socket_variable else {})}

    def arguments(self, socket: Path) -> list[str]:
        """The arguments after those of its command."""
        return [self.socket_option, str(socket)] if self.socket_option else []


BEHIND: Mapping[str, Behind] = {
    # the variables are those of common/arg.cpp; a host that ends in .sock is a path
    LLAMACPP: Behind(
        "LLAMA_ARG_HOST",
        "",
        "LLAMA_API_KEY",
        # each seen with b11549
        EngineQuirks(
            # those of stb_image that Pillow names (tools/mtmd/mtmd-helper.cpp)
            pictures=frozenset({"PNG", "JPEG", "GIF", "BMP", "PPM"}),
            describes_model=True,
            any_model=True,
            one_prompt=True,
            schema_of_chats=True,
            any_tool=True,
            readers={
                CHATS: f"{CHATS}/input_tokens",
                RESPONSES: f"{RESPONSES}/input_tokens",
                ANTHROPIC: f"{ANTHROPIC}/count_tokens",
            },
        ),
        Asks.TIMINGS,
    ),
    # without IDLE_MINUTES it loads the gateway as a middleware
    VLLM: Behind("", "--uds", Settings.vllm_api_key.name, NO_QUIRKS),
}

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the engine, without the endpoint's secrets."""
    ours = {*SECRET_NAMES, SECRETS_FILE, KEYS_FILE}
    return {name: value for name, value in environment.items() if name not in ours}


async def serve(behind: Behind, command: list[str], environment: Mapping[str, str]) -> int:
    """Run the engine and its door until the engine ends; returns its exit code, 128 + the number of a signal.

    Raises Refused without a valid key, and OSError if the address is taken.
    """
    settings = Settings(environment)
    key = secrets.token_urlsafe(32)
    # a directory that only this user can enter
    with TemporaryDirectory(prefix="dflash-") as private:
        socket = Path(private) / "engine.sock"
        inside = without_secrets(environment) | behind.variables(socket, key)

        async def start() -> asyncio.subprocess.Process:
            # that of an engine that was killed
            socket.unlink(missing_ok=True)
            return await asyncio.create_subprocess_exec(
                *command, *behind.arguments(socket), env=inside, preexec_fn=_die_with_parent
            )

        forward = Forward(str(socket), key)
        minutes = settings.idle_minutes
        awake = Awake(forward, start, f"Bearer {key}".encode(), WakeTimes(None if minutes is None else 60 * minutes))
        told = {**environment, **read_secrets(environment)}
        door = DenyByDefault(awake, told, asks=behind.asks, quirks=behind.quirks)
        runner = web.ServerRunner(server_of(door))
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.dflash_bind, settings.dflash_port).start()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, awake.signal, number)
            return await awake.run()
        finally:
            await runner.cleanup()
            await forward.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Serve until the engine ends; returns the exit code."""
    try:
        return asyncio.run(serve(BEHIND[argv[0]], argv[1:], os.environ))
    except Refused as refusal:
        print(f"dflash: {refusal.message} ({refusal.hint})", file=sys.stderr)
        return REFUSED
    except OSError as problem:
        print(f"dflash: the endpoint cannot be opened: {problem}", file=sys.stderr)
        return NOT_LISTENING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
