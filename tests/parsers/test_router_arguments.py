"""SMG's own arguments: it knows what the router is started with."""

from smg import router_args

from dflash_deploy.serve.router.__main__ import arguments
from dflash_deploy.serve.router.files import RouterKeys
from dflash_deploy.serve.settings import Settings

KEYS = RouterKeys("admin-key-of-the-router", "probe-key-of-the-router")


def test_smg_knows_every_argument_and_gets_no_key_of_a_client() -> None:
    settings = Settings({"DFLASH_BIND": "127.0.0.1", "DFLASH_PORT": "8001", "MAX_NUM_SEQS": "4"})
    made = router_args.RouterArgs(**arguments(settings, KEYS))
    assert made.api_key is None
    assert not made.tenant_api_keys
    assert made.host == made.prometheus_host == "127.0.0.1"
