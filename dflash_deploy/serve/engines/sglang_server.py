"""`python -m dflash_deploy.serve.engines.sglang_server ARGUMENTS`: SGLang's server with the key from the environment.

SGLang reads a key only from its arguments, which `ps` shows to every user, and writes them all into its log. This
module adds the key inside the process, with a type that prints as `***`, and removes its variable before SGLang starts
further processes.
"""

from __future__ import annotations

import os
import sys

from dflash_deploy.serve.settings import Settings

KEY = Settings.vllm_api_key.name


class UnprintedKey(str):
    """A key that equals its text, but whose representation, which logs show, does not contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def main(argv: list[str]) -> None:
    """Run SGLang's server until it ends."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    key = os.environ.pop(KEY, "")
    arguments = prepare_server_args(argv)
    if key:
        arguments.api_key = UnprintedKey(key)
    run_server(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
