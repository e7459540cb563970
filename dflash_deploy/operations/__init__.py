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

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.deployment.outputs import check_output, write_output
    from dflash_deploy.export.cluster import Cluster
    from dflash_deploy.export.compose import ComposeProject
    from dflash_deploy.operations.addresses import key_in
    from dflash_deploy.operations.asking import Asked, ask_engine
    from dflash_deploy.operations.benchmarking import Benchmark, bench
    from dflash_deploy.operations.cluster import KubernetesExport, check_kubernetes, export_kubernetes
    from dflash_deploy.operations.composing import ComposeExport, check_compose, export_compose
    from dflash_deploy.operations.connecting import Connections, connect, connect_url, has_deployment
    from dflash_deploy.operations.converting import Converted, convert_drafter
    from dflash_deploy.operations.examining import Examined, doctor
    from dflash_deploy.operations.explaining import ExplainedLog, explain_log
    from dflash_deploy.operations.exported import ExportCheck
    from dflash_deploy.operations.exporting import MonitoringExport, export_monitoring
    from dflash_deploy.operations.fetching import Pulled, carry, check_files, check_hub, pull
    from dflash_deploy.operations.fleet_accepting import AcceptedKeys, fleet_accept
    from dflash_deploy.operations.fleet_hosts import FleetResult
    from dflash_deploy.operations.fleet_keys import FleetKeys, fleet_add_key, fleet_revoke_key, fleet_rotate_key
    from dflash_deploy.operations.fleet_machine import MachineFacts, fleet_facts
    from dflash_deploy.operations.fleet_routing import Routed, fleet_route
    from dflash_deploy.operations.fleet_starting import fleet_restart, fleet_up
    from dflash_deploy.operations.fleet_transfers import MissingWeights, fleet_offer, fleet_take, fleet_weights
    from dflash_deploy.operations.fleet_usage import FleetUsage, fleet_usage_of_keys
    from dflash_deploy.operations.fleet_watching import fleet_watch
    from dflash_deploy.operations.fleets import (
        FleetCreated,
        fleet_down,
        fleet_init,
        fleet_logs,
        fleet_status,
        fleet_test,
    )
    from dflash_deploy.operations.images import bill_of_materials, build_image, digest, verify_image
    from dflash_deploy.operations.key_file import key
    from dflash_deploy.operations.keys import Replaced, rotate_key
    from dflash_deploy.operations.kubernetes_testing import test_kubernetes
    from dflash_deploy.operations.listing import model, models, profile, profile_fit, profiles
    from dflash_deploy.operations.log_lines import log
    from dflash_deploy.operations.logs import Bundle, bundle
    from dflash_deploy.operations.looking import FoundDeployment, Look, look
    from dflash_deploy.operations.monitored import (
        MonitoringState,
        monitoring_state,
        send_test_alert,
        start_monitoring,
        stop_monitoring,
    )
    from dflash_deploy.operations.named_keys import (
        KeyChange,
        Keys,
        UsageByName,
        add_key,
        list_keys,
        revoke_key,
        usage_of_keys,
    )
    from dflash_deploy.operations.offering import Offer, faster_recipe, offer
    from dflash_deploy.operations.past_events import History, history
    from dflash_deploy.operations.planned import Created, Planned, Rendered, init, plan, render, replicas_asked
    from dflash_deploy.operations.probing import Status, status
    from dflash_deploy.operations.probing_url import EndpointStatus, status_url
    from dflash_deploy.operations.receiving import receivers
    from dflash_deploy.operations.reporter import SILENT, Reporter, Silent
    from dflash_deploy.operations.running import Running, Worker, restart, roll_back, start
    from dflash_deploy.operations.scraping import Exporters
    from dflash_deploy.operations.silencing import Silenced, end_silences, list_silences, silence_alerts
    from dflash_deploy.operations.sizing import Capacity, capacity
    from dflash_deploy.operations.stacking import (
        ProductionStackExport,
        check_production_stack,
        export_production_stack,
    )
    from dflash_deploy.operations.stopping import Stopped, stop
    from dflash_deploy.operations.targets import BenchTarget, deployed, remote
    from dflash_deploy.operations.testing import Tested, test, test_url
    from dflash_deploy.operations.tuned import Tuned, estimated, plan_tuning, tune
    from dflash_deploy.operations.watching import Watched, watch
    from dflash_deploy.plan import Choice
    from dflash_deploy.redact import Secret
else:
    from dflash_deploy.operations.modules import MODULES

    __getattr__ = lazily(__name__, MODULES)


__all__ = [
    "ExplainedLog",
    "explain_log",
    "Cluster",
    "ComposeExport",
    "ProductionStackExport",
    "ComposeProject",
    "ExportCheck",
    "KubernetesExport",
    "check_compose",
    "check_production_stack",
    "check_kubernetes",
    "export_compose",
    "export_production_stack",
    "MonitoringExport",
    "MonitoringState",
    "monitoring_state",
    "send_test_alert",
    "start_monitoring",
    "stop_monitoring",
    "receivers",
    "Exporters",
    "Silenced",
    "silence_alerts",
    "end_silences",
    "list_silences",
    "export_kubernetes",
    "export_monitoring",
    "History",
    "history",
    "SILENT",
    "AcceptedKeys",
    "Asked",
    "Benchmark",
    "BenchTarget",
    "Bundle",
    "Capacity",
    "Choice",
    "Connections",
    "Converted",
    "Created",
    "Examined",
    "FleetCreated",
    "FleetKeys",
    "FleetResult",
    "FleetUsage",
    "FoundDeployment",
    "KeyChange",
    "Keys",
    "Limits",
    "Look",
    "MachineFacts",
    "MissingWeights",
    "Offer",
    "faster_recipe",
    "Planned",
    "Pulled",
    "Rendered",
    "Replaced",
    "Routed",
    "Reporter",
    "Running",
    "Secret",
    "Silent",
    "Status",
    "Stopped",
    "Tested",
    "Tuned",
    "UsageByName",
    "Watched",
    "Worker",
    "add_key",
    "ask_engine",
    "bench",
    "bill_of_materials",
    "build_image",
    "bundle",
    "capacity",
    "carry",
    "check_files",
    "check_hub",
    "check_output",
    "connect",
    "connect_url",
    "has_deployment",
    "EndpointStatus",
    "status_url",
    "convert_drafter",
    "deployed",
    "digest",
    "doctor",
    "estimated",
    "fleet_accept",
    "fleet_add_key",
    "fleet_down",
    "fleet_facts",
    "fleet_init",
    "fleet_logs",
    "fleet_offer",
    "fleet_restart",
    "fleet_revoke_key",
    "fleet_rotate_key",
    "fleet_route",
    "fleet_status",
    "fleet_take",
    "fleet_test",
    "fleet_up",
    "fleet_usage_of_keys",
    "fleet_watch",
    "fleet_weights",
    "init",
    "key",
    "key_in",
    "list_keys",
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
    "replicas_asked",
    "restart",
    "revoke_key",
    "roll_back",
    "rotate_key",
    "start",
    "status",
    "stop",
    "test",
    "test_kubernetes",
    "test_url",
    "tune",
    "usage_of_keys",
    "verify_image",
    "watch",
    "write_output",
]


def __dir__() -> list[str]:
    return __all__
