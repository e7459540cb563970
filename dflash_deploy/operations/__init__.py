"""The Python API: what each command does, without a terminal. A module is named after its command.

    from dflash_deploy.operations import bench, down, test, up

    up.start(directory)
    test.test(directory).failure
    bench.bench(bench.deployed(directory), concurrency=(1, 8)).rows
    down.stop(directory)

Each operation returns a frozen result and raises a `DeployError` with `message`, `hint` and `exit_code`. It prints
nothing: a `Reporter` receives notes and progress.
"""
