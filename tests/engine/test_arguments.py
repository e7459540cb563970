"""The arguments that `serve` makes are those that the real engine's parser knows."""

import json

import pytest

from dflash_deploy.serve.engines import DEFAULT, ENGINES, Build
from dflash_deploy.serve.settings import Settings
from tests.support.vllm_forks import VllmForks
from tests.unit.serve.test_arguments import FULL

ASK = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
print(json.dumps({"seqs": parsed.max_num_seqs, "limit": parsed.limit_mm_per_prompt, "spec": parsed.speculative_config}))
print(json.dumps(build_dynamic_sd_schedule_lookup(json.loads(sys.argv[2]), 10, 7)))
"""


@pytest.fixture(scope="module")
def answers(forks: VllmForks) -> list[str]:
    """What the engine makes of all arguments and of a schedule."""
    arguments = ENGINES[DEFAULT].arguments(Settings(FULL), Build("0.32.0"))[1:]
    written = {"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", "DFLASH_NUM_SPEC_TOKENS": "7"}
    settings = Settings(written | {"DFLASH_SPEC_SCHEDULE": "1-2:7,3-8:3"})
    assert settings.speculation is not None
    done = forks.run(ASK, json.dumps(arguments), json.dumps(settings.speculation.schedule))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-2:]


def test_every_argument_is_known_to_the_engine(answers: list[str]) -> None:
    parsed = json.loads(answers[0])
    assert parsed["seqs"] == 16
    assert parsed["limit"] == {"image": 4, "video": 0}
    assert parsed["spec"]["attention_backend"] == "TRITON_ATTN"
    assert parsed["spec"]["num_speculative_tokens_per_batch_size"] == [[1, 4, 15], [5, 16, 3]]


def test_a_schedule_means_to_the_engine_what_the_template_says(answers: list[str]) -> None:
    # by the number of sequences, from 0 on; beyond the last range its number goes on
    assert json.loads(answers[1]) == [0, 7, 7, 3, 3, 3, 3, 3, 3, 3, 3]
