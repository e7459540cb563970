"""The Python API: what each command does, without a terminal.

    from dflash_deploy import operations

    operations.start(directory)
    operations.test(directory).failure
    operations.bench(operations.deployed(directory), concurrency=(1, 8)).rows
    operations.stop(directory)

Each operation returns a frozen result and raises a `DeployError` with `message`, `hint` and `exit_code`. It prints
nothing: a `Reporter` receives notes and progress. A module is imported when one of its names is used first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.deployment.outputs import check_output, write_output
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.benchmarking import Benchmark, bench
    from dflash_deploy.operations.connecting import Connections, connect
    from dflash_deploy.operations.converting import Converted, convert_drafter
    from dflash_deploy.operations.examining import Examined, doctor
    from dflash_deploy.operations.fetching import Pulled, carry, check_files, check_hub, pull
    from dflash_deploy.operations.images import bill_of_materials, build_image, digest, verify_image
    from dflash_deploy.operations.key_file import key
    from dflash_deploy.operations.keys import Replaced, rotate_key
    from dflash_deploy.operations.listing import model, models, profile, profile_fit, profiles
    from dflash_deploy.operations.log_lines import log
    from dflash_deploy.operations.logs import Bundle, bundle
    from dflash_deploy.operations.looking import FoundDeployment, Look, look
    from dflash_deploy.operations.offering import Offer, offer
    from dflash_deploy.operations.planned import Created, Planned, Rendered, init, plan, render
    from dflash_deploy.operations.probing import Status, status
    from dflash_deploy.operations.reporter import SILENT, Reporter, Silent
    from dflash_deploy.operations.running import Running, Worker, restart, roll_back, start
    from dflash_deploy.operations.stopping import Stopped, stop
    from dflash_deploy.operations.targets import BenchTarget, deployed, remote
    from dflash_deploy.operations.testing import Tested, test, test_url
    from dflash_deploy.operations.tuned import Tuned, estimated, plan_tuning, tune
    from dflash_deploy.operations.watching import Watched, watch
    from dflash_deploy.plan import Choice
    from dflash_deploy.redact import Secret

_MODULES = {
    "dflash_deploy.bench.workload": ("Limits",),
    "dflash_deploy.deployment.outputs": ("check_output", "write_output"),
    "dflash_deploy.operations.addresses": ("key_in",),
    "dflash_deploy.operations.benchmarking": ("Benchmark", "bench"),
    "dflash_deploy.operations.connecting": ("Connections", "connect"),
    "dflash_deploy.operations.converting": ("Converted", "convert_drafter"),
    "dflash_deploy.operations.examining": ("Examined", "doctor"),
    "dflash_deploy.operations.fetching": ("Pulled", "carry", "check_files", "check_hub", "pull"),
    "dflash_deploy.operations.images": ("bill_of_materials", "build_image", "digest", "verify_image"),
    "dflash_deploy.operations.key_file": ("key",),
    "dflash_deploy.operations.keys": ("Replaced", "rotate_key"),
    "dflash_deploy.operations.listing": ("model", "models", "profile", "profile_fit", "profiles"),
    "dflash_deploy.operations.log_lines": ("log",),
    "dflash_deploy.operations.logs": ("Bundle", "bundle"),
    "dflash_deploy.operations.looking": ("FoundDeployment", "Look", "look"),
    "dflash_deploy.operations.offering": ("Offer", "offer"),
    "dflash_deploy.operations.planned": ("Created", "Planned", "Rendered", "init", "plan", "render"),
    "dflash_deploy.operations.probing": ("Status", "status"),
    "dflash_deploy.operations.reporter": ("SILENT", "Reporter", "Silent"),
    "dflash_deploy.operations.running": ("Running", "Worker", "restart", "roll_back", "start"),
    "dflash_deploy.operations.stopping": ("Stopped", "stop"),
    "dflash_deploy.operations.targets": ("BenchTarget", "deployed", "remote"),
    "dflash_deploy.operations.testing": ("Tested", "test", "test_url"),
    "dflash_deploy.operations.tuned": ("Tuned", "estimated", "plan_tuning", "tune"),
    "dflash_deploy.operations.watching": ("Watched", "watch"),
    "dflash_deploy.plan": ("Choice",),
    "dflash_deploy.redact": ("Secret",),
}
"""Where each name of the API is defined."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "SILENT",
    "Benchmark",
    "Bundle",
    "Choice",
    "Connections",
    "Converted",
    "Created",
    "Examined",
    "FoundDeployment",
    "Limits",
    "Look",
    "Offer",
    "Planned",
    "Pulled",
    "Rendered",
    "Replaced",
    "Reporter",
    "Running",
    "Secret",
    "Silent",
    "Status",
    "Stopped",
    "BenchTarget",
    "Tested",
    "Tuned",
    "Watched",
    "Worker",
    "bench",
    "bill_of_materials",
    "build_image",
    "bundle",
    "carry",
    "check_files",
    "check_hub",
    "check_output",
    "connect",
    "convert_drafter",
    "deployed",
    "digest",
    "doctor",
    "estimated",
    "init",
    "key",
    "key_in",
    "log",
    "look",
    "model",
    "models",
    "offer",
    "plan",
    "plan_tuning",
    "profile",
    "profile_fit",
    "profiles",
    "pull",
    "remote",
    "render",
    "restart",
    "roll_back",
    "rotate_key",
    "start",
    "status",
    "stop",
    "test",
    "test_url",
    "tune",
    "verify_image",
    "watch",
    "write_output",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A name of the API, from its module."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
