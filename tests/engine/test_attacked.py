"""vLLM's endpoint under attack: what `attacked` lists holds for uvicorn with the gateway inside."""

from dflash_deploy.deployment import Deployment
from tests.support import attacked
from tests.support.attacked import Endpoint
from tests.support.llamacpp_native import processes
from tests.support.server import Server


def test_the_gateway_holds(server: Server) -> None:
    server.serve(drafting=True).close()
    port = Deployment.existing(server.directory).values["DFLASH_PORT"]
    (process,) = [pid for pid, line in processes(server.directory).items() if " -m vllm.entrypoints" in line]
    attacked.holds(Endpoint(f"http://127.0.0.1:{port}", server.key), process, half=1500)
