"""`python -m dflash_deploy.serve.engines.llamacpp_question COUNT SERVER… ARGUMENTS…`: llama.cpp's parser is asked.

COUNT is the number of words of SERVER. llama.cpp reads its arguments in their order and ends at `--version`, so with
that as the last one it has checked all others and loads nothing. What it decides from the weights is not known then.
"""

from __future__ import annotations

import subprocess
import sys

from dflash_deploy.serve import answer

PATIENCE = 30.0  # seconds for a program that only reads its arguments


def main(words: list[str]) -> int:
    """Write one answer. Returns 1 without an answer if the server crashes or hangs."""
    count, command = int(words[0]), words[1:]
    done = subprocess.run([*command, "--version"], capture_output=True, timeout=PATIENCE, check=False)
    lines = [line for line in (done.stdout + done.stderr).decode("utf-8", "replace").splitlines() if line.strip()]
    if done.returncode == 0:
        answer.accepted({"arguments": f"{len(command) - count}, all accepted by its parser"})
    elif done.returncode == 1 and lines:
        # the parser ends with 1; its other lines are the usage of the argument
        answer.refused(next((line for line in lines if "error" in line.lower()), lines[-1]))
    else:
        sys.stderr.write("\n".join([*lines[-5:], f"llama-server ended with {done.returncode}\n"]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
