"""`setup.sh` of the exported Compose folder: it makes `.env` with new keys. No key is in an argument or a variable
that other processes can read.
"""

from __future__ import annotations

from dflash_deploy import __version__
from dflash_deploy.export.compose import DOOR, ROUTER, SETUP, TEMPLATE, USER, ComposeSource
from dflash_deploy.serve.router.files import KEYS
from dflash_deploy.serve.settings import Settings

ROUTERS_NAME = "router"
"""The name of the router's key in DFLASH_API_KEYS; it opens GET /metrics only."""

SCRIPT = """\
#!/bin/sh
# Written by dflash-deploy {version} export compose.
# Makes .env from {template}, readable only by you: with a new API key, or with the one in a file.
#   sh {setup} [FILE]
set -eu
umask 077
fail() {{ printf '{setup}: %s\\n' "$1" >&2; exit 1; }}
here=$(dirname -- "$0")
[ ! -e "$here/.env" ] || fail ".env exists, and its keys stay; remove it to make new ones"
if [ $# -gt 0 ]; then key=$(cat -- "$1"); else key=$(openssl rand -hex 32); fi
case $key in
*[!A-Za-z0-9_-]*) fail "an API key has letters, digits, - and _ only" ;;
esac
[ "${{#key}}" -ge 16 ] || fail "an API key has at least 16 characters"
cd -- "$here"
{more}while IFS= read -r line; do
  case $line in
  {key}=) line="{key}=$key" ;;
  {user}=) line="{user}=$(id -u):$(id -g)" ;;
{cases}  esac
  printf '%s\\n' "$line"
done < {template} > .env.new
mv .env.new .env
echo "wrote .env with the API key; \\`docker compose up -d\\` starts the containers"
"""

_ROUTER = f"""\
probe=$(openssl rand -hex 32)
admin=$(openssl rand -hex 32)
printf '{{"admin": "%s", "probe": "%s"}}\\n' "$admin" "$probe" > {ROUTER}/{KEYS}
"""

_DATA = f"mkdir -p {DOOR}/data\n"


def setup_script(source: ComposeSource) -> str:
    """The text of setup.sh."""
    further = Settings.dflash_api_keys.name
    case = f'  {further}=) line="{further}={ROUTERS_NAME}:$probe:metrics" ;;\n'
    return SCRIPT.format(
        version=__version__,
        setup=SETUP,
        template=TEMPLATE,
        key=Settings.vllm_api_key.name,
        user=USER,
        more=(_ROUTER if source.routed else "") + (_DATA if source.plan.settings.published else ""),
        cases=case if source.routed else "",
    )
