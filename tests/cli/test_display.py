"""A program that stops reading the progress of a start does not end the start."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_reader_that_goes_away_does_not_end_what_is_under_way(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from dflash_deploy.startup import StartProgress\n"
        "from dflash_deploy.cli.display import Terminal\n"
        "with Terminal(json_stream=True).starting() as show:\n"
        "    for number in range(50):\n"
        "        show(StartProgress(f'phase {number}', 0.0, 'x' * 5000))\n"
        "        time.sleep(0.01)\n"
        "open(sys.argv[1], 'w').write('went on')\n"
    )
    place = tmp_path / "done"
    command = [sys.executable, "-c", program, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["phase"] == "phase 0"
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")
    assert place.read_text() == "went on"
