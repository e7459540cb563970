"""`python -m dflash_deploy.serve.engines.sglang_server ARGUMENTS`: SGLang's server behind the gateway.

SGLang reads a key only from its arguments, which `ps` shows to every user, writes them all into its log, and serves
them at /server_info. So it gets a key of its own, made here, in a type that prints as `***`; the endpoint's keys are
known to the gateway only, and their variables are removed before SGLang starts further processes.

SGLang's own check leaves paths that begin with /health, /ready and /metrics, every OPTIONS request and every websocket
open (0.5.23, srt/utils/auth.py). So `serve.gateway` is in front of all applications that SGLang makes with FastAPI in
this process: its server, and the one that answers health checks on every machine but the first. Its own check stays
behind it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.engines.sglang import ONE_DOOR
from dflash_deploy.serve.gateway.asgi import App
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

REFUSED = 3  # the exit code for settings that cannot work, as of `dflash_deploy.serve`

# The variable that replaces SGLang's HTTP server by one in Rust (0.5.23, srt/environ.py).
RUST_SERVER = "SGLANG_RUST_SERVER"


class UnprintedKey(str):
    """A key that equals its text, but whose representation, which logs show, does not contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def put_gateway_in_front(environment: Mapping[str, str], engine_key: str) -> None:
    """Make every FastAPI application of this process one behind the gateway, in front of all its middlewares.

    `environment` holds the endpoint's keys and the body limit, `engine_key` is SGLang's.
    """
    from fastapi import FastAPI

    build = FastAPI.build_middleware_stack

    def build_behind_gateway(app: FastAPI) -> App:
        # it imports prometheus_client, which must not be imported before SGLang has named the directory of its counters
        from dflash_deploy.serve.gateway.auth import DenyByDefault
        from dflash_deploy.serve.gateway.metering import Asks

        return DenyByDefault(build(app), environment, asks=Asks.USAGE_IN_EACH_CHUNK, engine_key=engine_key)

    FastAPI.build_middleware_stack = build_behind_gateway


def end_answers_in_time() -> None:
    """Let SGLang end an answer where the context does, and its request with the answer, as vLLM and llama.cpp do.

    Its scheduler bounds an answer by what the prompt leaves (0.5.23, managers/scheduler.py, init_req_max_new_tokens).
    But the class in front refuses a request whose prompt and `max_tokens` together exceed the context, with 400
    (managers/tokenizer_manager.py), and coding agents ask for 32,000 tokens each time.

    After each stream that class waits for two seconds, in case its client left (create_abort_task): until then the
    gateway counted a request in flight, and refused the next one of a key that may have one.
    """
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    create = TokenizerManager.create_abort_task

    def create_abort_task(manager: Any, request: Any) -> Callable[[], Awaitable[None]]:
        abort = create(manager, request)

        async def unless_ended() -> None:
            if any(one in manager.rid_to_state for one in ([request.rid] if request.is_single else request.rid)):
                await abort()

        return unless_ended

    TokenizerManager.create_abort_task = create_abort_task
    # each instance sets it to True, and nothing sets it to False
    TokenizerManager.validate_total_tokens = property(lambda _: False, lambda _, value: None)


def check_one_door(arguments: object, environment: Mapping[str, str]) -> None:
    """Raise Refused if SGLang would listen where the gateway is not. `arguments` is its ServerArgs."""
    for name, only in ONE_DOOR.items():
        value = getattr(arguments, name, only)
        if value != only:
            raise Refused(
                f"SGLang would listen without the gateway: {name} is {value}",
                hint=f"remove it from {Settings.extra_args} and from the file of --config",
            )
    if environment.get(RUST_SERVER, "").lower() not in {"", "0", "false"}:
        raise Refused(f"SGLang would listen without the gateway: {RUST_SERVER} is set", hint="remove the variable")


def prepared(argv: list[str], environment: MutableMapping[str, str]) -> Any:
    """SGLang's ServerArgs with a key of its own, the gateway in front of its server.

    Removes the keys from `environment`. Raises Refused without a key, or if SGLang would listen elsewhere too.
    """
    keys = {name: environment.pop(name, "") for name in SECRET_NAMES}
    api_keys(keys)
    from sglang.srt.server_args import prepare_server_args

    arguments = prepare_server_args(argv)
    check_one_door(arguments, environment)
    end_answers_in_time()
    arguments.api_key = UnprintedKey(secrets.token_urlsafe(32))
    put_gateway_in_front({**environment, **keys}, arguments.api_key)
    return arguments


def main(argv: list[str]) -> int:
    """Run SGLang's server until it ends; returns the exit code."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils import kill_process_tree

    # as sglang.launch_server does
    load_plugins()
    try:
        run_server(prepared(argv, os.environ))
    except Refused as refusal:
        print(f"dflash: {refusal.message} ({refusal.hint})", file=sys.stderr)
        return REFUSED
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
