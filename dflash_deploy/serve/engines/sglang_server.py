"""`python -m dflash_deploy.serve.engines.sglang_server ARGUMENTS`: SGLang's server with the key from the environment.

SGLang reads a key from its arguments alone, where `ps` shows it to everybody, and writes all of them into its log. Here
the key is put among them inside the process, in a form that is not written out, and its variable is gone before SGLang
starts processes of its own.
"""

from __future__ import annotations

import os
import sys

from dflash_deploy.serve.settings import Settings

KEY = Settings.vllm_api_key.name


class UnprintedKey(str):
    """A key that is equal to its text, and whose representation, which logs show, is not."""

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
