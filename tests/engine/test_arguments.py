"""The arguments that `serve` makes are those that the real engine's parser knows."""

import json
import os
import subprocess
import sys

from dflash_deploy.serve.arguments import engine_arguments
from dflash_deploy.serve.engine import CPU_SITE
from dflash_deploy.serve.settings import read_settings
from tests.unit.serve.test_arguments import FULL

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
print(json.dumps({"seqs": parsed.max_num_seqs, "limit": parsed.limit_mm_per_prompt, "spec": parsed.speculative_config}))
"""


def test_every_argument_is_known_to_the_engine() -> None:
    arguments = engine_arguments(read_settings(FULL), version="0.32.0")[1:]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(arguments)],
        env=os.environ | {"PYTHONPATH": str(CPU_SITE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = json.loads(done.stdout.splitlines()[-1])
    assert parsed["seqs"] == 16
    assert parsed["limit"] == {"image": 4, "video": 0}
    assert parsed["spec"]["attention_backend"] == "TRITON_ATTN"
