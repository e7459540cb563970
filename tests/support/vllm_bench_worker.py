"""`vllm bench serve`, as often as it is told to, in one process: its imports take seconds of the engine's cores.

Each line of standard input is a JSON list of its arguments; each is answered by a line with what it printed.
"""

import contextlib
import io
import json
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

answers = sys.stdout
print(json.dumps(""), file=answers, flush=True)
for line in sys.stdin:
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(parser.parse_args(json.loads(line)))
    print(json.dumps(printed.getvalue()), file=answers, flush=True)
