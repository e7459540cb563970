"""What programs printed on machines of others. The README.md of each folder says where it was seen."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent


def recorded(program: str, name: str) -> str:
    """The recorded output of a program."""
    return (_FOLDER / program / name).read_text(encoding="utf-8")


def plays(place: Path, program: str, name: str, *, code: int = 0, body: str = "") -> str:
    """Write a script to `place` that prints a recording, after `body` had its chance to do something else."""
    script = place / program
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/sh\n{body}\ncat '{_FOLDER / program / name}'\nexit {code}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def reports(place: Path, *gpus: Mapping[str, str], tail: str = "", code: int = 0) -> str:
    """Write an nvidia-smi to `place` that prints the queried cells of these GPUs, then `tail`.

    Cells that are not given are those of an RTX 3090 in good condition, or `[N/A]`.
    """
    script = place / "nvidia-smi"
    script.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**RTX_3090, "index": str(index), **gpu} for index, gpu in enumerate(gpus)]
    script.write_text(f"""#!{sys.executable}
import json, sys
fields = next((word.partition("=")[2].split(",") for word in sys.argv if word.startswith("--query-gpu=")), [])
for row in json.loads({json.dumps(json.dumps(rows))}) if fields else ():
    print(", ".join(row.get(field, "[N/A]") for field in fields))
print({tail!r}, end="")
sys.exit({code})
""")
    script.chmod(0o755)
    return str(script)


RTX_3090 = {
    "name": "NVIDIA GeForce RTX 3090", "compute_cap": "8.6", "memory.total": "24576", "memory.free": "24110",
    "driver_version": "595.71.05", "pcie.link.width.current": "16", "pcie.link.width.max": "16",
    "pcie.link.gen.current": "1", "pcie.link.gen.max": "4", "power.limit": "350.00", "power.default_limit": "350.00",
    "power.draw": "24.49", "temperature.gpu": "41", "utilization.gpu": "0", "clocks.current.sm": "210",
    "clocks.max.sm": "2100", "clocks_throttle_reasons.active": "0x0000000000000001", "compute_mode": "Default",
    "gpu_recovery_action": "None", "remapped_rows.pending": "No",
}  # fmt: skip
