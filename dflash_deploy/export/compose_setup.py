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
# letters of a key are those of ASCII in every locale
LC_ALL=C
export LC_ALL
fail() {{ printf '{setup}: %s\\n' "$1" >&2; exit 1; }}
new() {{ openssl rand -hex 32 || fail "openssl cannot make a key: install it, and run this again"; }}
here=$(dirname -- "$0")
[ ! -e "$here/.env" ] || fail ".env exists, and its keys stay; remove it to make new ones"
if [ $# -gt 0 ]; then key=$(cat -- "$1"); else key=$(new); fi
case $key in
*[!A-Za-z0-9_-]*) fail "an API key has letters, digits, - and _ only" ;;
esac
[ "${{#key}}" -ge 16 ] || fail "an API key has at least 16 characters"
CDPATH= cd -- "$here"
# Compose names the project after the folder, and takes another folder of this name for the same project
name=$(printf %s "${{PWD##*/}}" | tr A-Z a-z | tr -cd a-z0-9_- | sed 's/^[_-]*//')
other=$(docker ps -a --filter "label=com.docker.compose.project=$name" \
  --format '{{{{.Label "com.docker.compose.project.working_dir"}}}}' 2>/dev/null | grep -vxF "$PWD") || other=
[ -z "$other" ] || fail "Docker has containers of the project $name from another folder: rename this one"
# what is left of a run that was killed
rm -f .env.new
trap 'rm -f .env.new' EXIT
trap 'exit 1' HUP INT TERM
{more}filled=0
# the last line may have no end
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
  {key}=) line="{key}=$key" filled=$((filled + 1)) ;;
  {user}=) line="{user}=$(id -u):$(id -g)" filled=$((filled + 1)) ;;
{cases}  esac
  printf '%s\\n' "$line"
done < {template} > .env.new
[ "$filled" -eq {lines} ] || fail "{template} needs the lines {named}, each once and without a value"
mv .env.new .env
echo "wrote .env with the API key; \\`docker compose up -d\\` starts the containers"
"""

_ROUTER = f"""\
probe=$(new)
admin=$(new)
rm -f {ROUTER}/{KEYS}
printf '{{"admin": "%s", "probe": "%s"}}\\n' "$admin" "$probe" > {ROUTER}/{KEYS}
"""

_DATA = f"mkdir -p {DOOR}/data\n"


def setup_script(source: ComposeSource) -> str:
    """The text of setup.sh."""
    further = Settings.dflash_api_keys.name
    case = f'  {further}=) line="{further}={ROUTERS_NAME}:$probe:metrics" filled=$((filled + 1)) ;;\n'
    filled = [Settings.vllm_api_key.name, USER, *([further] if source.routed else [])]
    return SCRIPT.format(
        version=__version__,
        setup=SETUP,
        template=TEMPLATE,
        key=Settings.vllm_api_key.name,
        user=USER,
        more=(_ROUTER if source.routed else "") + (_DATA if source.plan.settings.published else ""),
        cases=case if source.routed else "",
        lines=len(filled),
        named=", ".join(f"{name}=" for name in filled),
    )
