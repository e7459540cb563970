"""The panels of the machine: memory, processors, disks, GPUs and the ports of the link."""

from __future__ import annotations

from dflash_deploy.monitoring.panel import BY_MACHINE, Panel, of_limit, series
from dflash_deploy.serve.settings import Settings

MEMORY = Panel(
    "Memory left",
    (series("memory_available_bytes", BY_MACHINE), of_limit("memory_available_bytes")),
    "bytes",
    "Memory that programs can still get. With unified memory this is the GPU's memory too.",
    f"Below the limit: end other programs, or lower {Settings.gpu_memory_utilization}.",
)
CPU = Panel(
    "Processors",
    (series("cpu_busy", BY_MACHINE),),
    "percentunit",
    "Busy share of the processors.",
    "An engine on a GPU needs about one core; more load than that has another cause.",
)
DISK = Panel(
    "Disk left",
    (series("disk_available", BY_MACHINE), of_limit("disk_available")),
    "percentunit",
    "Free share of the fullest file system.",
    "Remove old images (docker system df) or weights.",
)
GPU_TEMPERATURE = Panel(
    "GPU temperature",
    (series("gpu_temperature_celsius", "{{instance}} {{gpu}}"), of_limit("gpu_temperature_celsius")),
    "celsius",
    "Temperature of each GPU.",
    "Above the limit the GPU becomes slower: check fans and air.",
)
GPU_POWER = Panel(
    "GPU power",
    (series("gpu_power_watts", "{{instance}} {{gpu}}"),),
    "watt",
    "Power of each GPU.",
    "Much less than usual under load: the GPU throttles, or waits for the processor.",
)
GPU_BUSY = Panel(
    "GPU use",
    (series("gpu_busy", "{{instance}} {{gpu}}"),),
    "percentunit",
    "Share of the time in which the GPU computes.",
    "Low under load: the engine waits for the processor, the network or the client.",
)
FABRIC = Panel(
    "Ports of the link",
    (series("fabric_ports_active", BY_MACHINE),),
    "none",
    "Active ports of the link between machines (RoCE, InfiniBand).",
    "One less than before: check cables with ip link and rdma link.",
)
