"""Scripts for the POSIX shell that run on a host before dflash-deploy is there, and the commands that run them.

Command lines are lists of arguments. No argument has a secret: files travel on standard input.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from dflash_deploy import __version__
from dflash_deploy.features.fleet.file import FleetHost
from dflash_deploy.serve.settings import Settings

ROOT = ".local/share/dflash-deploy/fleet"
"""Where environments and wheels are on a host, below the home directory."""

OLDEST_PYTHON = "3.11"

ABSENT, OTHER_VERSION, DAMAGED, NO_TOOL, NO_DIRECTORY, NO_PYTHON, NO_PIP = 90, 91, 92, 93, 94, 95, 96
"""Exit codes of the scripts."""

_EXAMINE = """\
printf 'home %s\\n' "$HOME"
printf 'clock %s\\n' "$(date +%s)"
printf 'system %s %s\\n' "$(uname -s)" "$(uname -m)"
for tool in flock sha256sum mktemp; do command -v "$tool" >/dev/null || printf 'lacks %s\\n' "$tool"; done
printf 'free %s\\n' "$(df -Pk "$HOME" | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4)"
"""

# The lock keeps a second sender out, and the system releases it when this shell ends. What a killed one left is
# written over. A sender that is cut off leaves bytes with another digest.
_RECEIVE = """\
umask 077
target=$1 digest=$2
case $target in /*) ;; *) target=$HOME/$target ;; esac
command -v flock >/dev/null && command -v sha256sum >/dev/null || exit 93
mkdir -p "${target%/*}" || exit 94
exec 9>"${target%/*}/.fleet.lock" || exit 94
flock -w 60 9 || exit 94
sum() { sha256sum <"$1" | cut -c 1-64; }
if [ -f "$target" ] && [ "$(sum "$target")" = "$digest" ]; then cat >/dev/null; echo same; exit 0; fi
part=${target%/*}/.${target##*/}.fleet
trap 'rm -f "$part"' EXIT
cat >"$part" || exit 94
[ "$(sum "$part")" = "$digest" ] || exit 92
sync "$part" 2>/dev/null
if [ -f "$target" ] && [ "${target##*/}" = .env ]; then
  cp -p "$target" "$part.last" && mv "$part.last" "$target.last" || exit 94
fi
mv "$part" "$target" || exit 94
echo written
"""

# An environment without the marker is one that a killed installation left.
_INSTALL = """\
umask 077
root=$HOME/$1 place=$HOME/$1/$2 spec=$3
mkdir -p "$root" || exit 94
exec 9>"$root/.fleet.lock" || exit 94
flock -w 900 9 || exit 94
[ -f "$place/complete" ] && [ -x "$place/bin/dflash-deploy" ] && { echo same; exit 0; }
case $spec in wheel:*) spec=$root/${spec#wheel:} ;; esac
rm -rf "$place" || exit 94
for python in python3 python3.14 python3.13 python3.12 python3.11; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found=$python && break
done
if command -v uv >/dev/null; then
  uv venv --quiet --python '>=3.11' "$place" >&2 || exit 95
  uv pip install --quiet --python "$place/bin/python" "$spec" >&2 || exit 96
else
  [ -n "$found" ] || exit 95
  "$found" -m venv "$place" >&2 || exit 95
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$spec" >&2 || exit 96
fi
: >"$place/complete" || exit 94
echo written
"""

_RUN = """\
program=$1 version=$2
shift 2
case $program in /*) ;; *) program=$HOME/$program ;; esac
[ -x "$program" ] || exit 90
has=$("$program" --version) || exit 90
[ "$has" = "dflash-deploy $version" ] || { printf 'other version: %s\\n' "$has" >&2; exit 91; }
exec "$program" "$@"
"""

# The lock file names the command that holds it. Only a start is interrupted, never another command. If it was killed,
# another process may have its number: that one does not have the lock file open.
_INTERRUPT = """\
lock=$1/.dflash/lock
case $lock in /*) ;; *) lock=$HOME/$lock ;; esac
[ -f "$lock" ] || exit 0
pid=$(sed -n -E 's/^(up|restart), process ([0-9]+), since.*/\\2/p' "$lock")
[ -n "$pid" ] || exit 0
for file in "/proc/$pid/fd"/*; do
  [ "$file" -ef "$lock" ] && { kill -INT "$pid"; exit 0; }
done
exit 0
"""

# The mark is the digest of the release and of the `.env` with which an engine was started, but its further keys:
# a gateway reads them again without a restart.
_SETTINGS = """\
place=$1 release=$3 keys="^[[:space:]]*(export[[:space:]]+)?$4[[:space:]]*="
case $place in /*) ;; *) place=$HOME/$place ;; esac
mark=$place/.dflash/started-together
[ -f "$place/.env" ] || { [ "$2" = mark ] || echo other; exit 0; }
now=$({ printf '%s\\n' "$release"; grep -vE "$keys" "$place/.env"; } | sha256sum | cut -c 1-64)
if [ "$2" = compare ]; then
  [ "$now" = "$(cat "$mark" 2>/dev/null)" ] && echo same || echo other
  exit 0
fi
umask 077
mkdir -p "$place/.dflash" && printf '%s\\n' "$now" >"$mark.new" && mv "$mark.new" "$mark" || exit 94
"""

_DEPLOYED = """\
place=$1
case $place in /*) ;; *) place=$HOME/$place ;; esac
[ -f "$place/.env" ] && echo yes || echo no
"""


def _shell(script: str, *args: str) -> list[str]:
    return ["sh", "-c", script, "fleet", *args]


def examine() -> list[str]:
    """Prints home directory, clock, system and free disk space of a host, one fact a line; needs nothing installed."""
    return _shell(_EXAMINE)


def receive(target: str, digest: str) -> list[str]:
    """Writes standard input to a file of mode 0600, by a rename, if it has this SHA-256; prints `same` or `written`."""
    return _shell(_RECEIVE, _in_home(target), digest)


def install(environment: str, spec: str) -> list[str]:
    """Makes an environment below ROOT with what pip calls `spec`; `wheel:NAME` is a wheel in ROOT."""
    return _shell(_INSTALL, ROOT, environment, spec)


def run(host: FleetHost, environment: str, *args: str) -> list[str]:
    """Runs dflash-deploy with these arguments, if the host has this version of it."""
    program = host.program or f"{ROOT}/{environment}/bin/dflash-deploy"
    return _shell(_RUN, _in_home(program), __version__, *args)


def interrupt(directory: str) -> list[str]:
    """Interrupts an `up` or `restart` that runs in a deployment directory."""
    return _shell(_INTERRUPT, _in_home(directory))


def mark_settings(directory: str, release: str) -> list[str]:
    """Remembers that an engine is started with the `.env` of a deployment directory, by this release and wheel.

    An empty release is one that no comparison finds.
    """
    return _shell(_SETTINGS, _in_home(directory), "mark", release, Settings.dflash_api_keys.name)


def compare_settings(directory: str, release: str) -> list[str]:
    """Prints `same` if `.env` and the release are those that `mark_settings` has seen, else `other`."""
    return _shell(_SETTINGS, _in_home(directory), "compare", release, Settings.dflash_api_keys.name)


def deployed(directory: str) -> list[str]:
    """Prints `yes` if a deployment directory has settings, else `no`; needs nothing installed."""
    return _shell(_DEPLOYED, _in_home(directory))


def _in_home(path: str) -> str:
    """The path as the scripts take it: absolute, or from the home directory."""
    return str(PurePosixPath(path.removeprefix("~/")))
