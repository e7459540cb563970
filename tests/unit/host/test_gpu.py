"""What nvidia-smi prints on machines that people have."""

from dflash_deploy.host.gpu import Gpu, parse_gpus


def test_a_gpu_with_its_own_memory() -> None:
    assert parse_gpus("NVIDIA H100 80GB HBM3, 9.0, 81559, 580.65.06\n") == (
        Gpu("NVIDIA H100 80GB HBM3", "9.0", 81559 * 2**20, "580.65.06"),
    )


def test_gb10_keeps_its_row_although_its_memory_is_not_known() -> None:
    # the line of a DGX Spark: NVML has no memory there
    assert parse_gpus("NVIDIA GB10, 12.1, [N/A], 580.95.05\n") == (Gpu("NVIDIA GB10", "12.1", None, "580.95.05"),)


def test_several() -> None:
    row = "NVIDIA GeForce RTX 3090, 8.6, 24576, 580.65.06\n"
    assert len(parse_gpus(row * 4)) == 4


def test_complaints_are_no_gpus() -> None:
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == ()
