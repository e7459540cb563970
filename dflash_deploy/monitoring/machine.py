"""What Prometheus records of the machine, and its alerts: node exporter and, with a GPU, DCGM exporter."""

from __future__ import annotations

from dflash_deploy.monitoring.alert import Alert, beyond
from dflash_deploy.monitoring.labels import DEPLOYMENT, WINDOW
from dflash_deploy.monitoring.rule import Recording
from dflash_deploy.serve.settings import Settings

MACHINE = (
    Recording(
        "dflash:memory_available_bytes",
        f"min by ({DEPLOYMENT}, instance) (node_memory_MemAvailable_bytes)",
        "bytes",
        "Memory that programs can still get. On unified memory this is the GPU's memory too.",
    ),
    Recording(
        "dflash:disk_available",
        f'min by ({DEPLOYMENT}, instance) (node_filesystem_avail_bytes{{fstype!~"tmpfs|overlay|squashfs"}} '
        f'/ (node_filesystem_size_bytes{{fstype!~"tmpfs|overlay|squashfs"}} > 0))',
        "share",
        "Free share of the fullest file system.",
    ),
    Recording(
        "dflash:cpu_busy",
        f'1 - avg by ({DEPLOYMENT}, instance) (rate(node_cpu_seconds_total{{mode="idle"}}[{WINDOW}]))',
        "share",
        "Busy share of the processors.",
    ),
    Recording(
        "dflash:fabric_ports_active",
        f"sum by ({DEPLOYMENT}, instance) (node_infiniband_state_id == bool 4)",
        "ports",
        "Ports of the link between the machines that are active (RoCE, InfiniBand).",
    ),
    Recording(
        "dflash:gpu_temperature_celsius",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_GPU_TEMP)",
        "°C",
        "Temperature of each GPU.",
    ),
    Recording(
        "dflash:gpu_power_watts",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_POWER_USAGE)",
        "W",
        "Power of each GPU.",
    ),
    Recording(
        "dflash:gpu_busy",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_GPU_UTIL) / 100",
        "share",
        "Share of the time in which a GPU computes.",
    ),
    Recording(
        "dflash:gpu_errors",
        f"max by ({DEPLOYMENT}, instance, gpu) (DCGM_FI_DEV_XID_ERRORS)",
        "Xid",
        "Number of the last Xid error of a GPU; 0 if there was none.",
    ),
)
"""Rules for node exporter and, with a GPU, DCGM exporter. GB10 has no field for GPU memory (DCGM_FI_DEV_FB_*)."""

_NODE = "node exporter"
_GPU = "DCGM exporter"

MACHINE_ALERTS = (
    Alert(
        "MemoryLow",
        beyond("dflash:memory_available_bytes", "<", "memory_available_bytes"),
        "2m",
        "page",
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B of memory left",
        f"Other programs need memory, or {Settings.gpu_memory_utilization} is too high; unified memory freezes.",
        "What else runs on the machine; the share that the profile allows.",
        "dflash-deploy doctor",
        needs=_NODE,
        by_restart=False,
    ),
    Alert(
        "DiskFull",
        beyond("dflash:disk_available", "<", "disk_available"),
        "10m",
        "warning",
        "a disk of {{ $labels.instance }} has {{ $value | humanizePercentage }} left",
        "Weights, images, logs or the data of Prometheus fill a file system.",
        "`df -h`, and old images with `docker system df`.",
        "dflash-deploy doctor",
        needs=_NODE,
        by_restart=False,
    ),
    Alert(
        "FabricDown",
        "dflash:fabric_ports_active < max_over_time(dflash:fabric_ports_active[1h])",
        "1m",
        "page",
        "{{ $labels.instance }} lost a port of the link between the machines",
        "A cable, a transceiver or a driver of the link (RoCE, InfiniBand). Engines over several machines hang.",
        "`ip link` and `rdma link` on both machines.",
        "dflash-deploy doctor",
        needs=f"{_NODE}, InfiniBand or RoCE",
        by_restart=False,
    ),
    Alert(
        "GPUHot",
        beyond("dflash:gpu_temperature_celsius", ">", "gpu_temperature_celsius"),
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has {{ $value }} °C",
        "Too little air, a fan that stopped, or a power limit that is too high. The GPU becomes slower.",
        "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE` shows whether it throttles.",
        "dflash-deploy doctor",
        needs=_GPU,
        by_restart=False,
    ),
    Alert(
        "GPUError",
        "dflash:gpu_errors > 0",
        "0m",
        "page",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} reports Xid {{ $value }}",
        "The driver reports an error of the GPU or of a kernel: Xid 31 is a memory access of a program, 79 a lost GPU.",
        "The kernel log (`dmesg | grep Xid`) and the engine's log at the same time.",
        "dflash-deploy status",
        needs=_GPU,
        by_restart=False,
    ),
)
