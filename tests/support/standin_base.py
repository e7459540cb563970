"""A stand-in for the engine's base image `vllm/vllm-openai-cpu`, for machines that reach no image registry.

It is a small Debian with the CPU engine among its Python packages, and nothing of this project: what the project's own
image adds, the cures for the engine's packaging included, has to come from the project's Dockerfile.

    python -m tests.support.standin_base --tag TAG --cache DIR

The engine's packages are not copied: the image's layer has hard links to the files of the virtual environment that runs
this module. Such an image runs and can be built on, but `docker save` would leave the packages out. Where links are
impossible, the files stream into the image. Only where that environment has another Python than the image, or no
engine, is one made in the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.commands import apt_install, checked, is_installed, locked, run_command
from tests.support.linked import link_files
from tests.support.procfs import mount_points
from tests.support.standin_packages import ENGINE, SITE, SUITE_PYTHON, Tree, sha256

TAG = "dflash-standin/vllm-openai-cpu:0.32.0"
SUITE = "bookworm"
SUITE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1", "libnuma1")
CACHE = Path(__file__).parents[2] / ".cache" / "standin"
KEY_LABEL = "dflash.standin.key"
# To be raised when the recipe below changes in a way that its inputs do not show.
RECIPE = 1
_MADE_OF = "etc/dflash-standin"  # the file of the image with its key
# Downloads over a poor line; nothing here takes minutes otherwise.
_SLOW = 1800.0
_LOCAL_SITE = f"usr/local/lib/python{SUITE_PYTHON}/dist-packages"
_CA_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_LOCAL_CAS = "usr/local/share/ca-certificates"


@dataclass
class Standin:
    """The image that stands in for the base: its tag, what it was made of, and how long each step took."""

    tag: str
    key: str
    built: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record how long the block took under the name of the step."""
        began = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - began, 1)


def ensure_image(tag: str = TAG, cache_dir: Path | None = None) -> Standin:
    """Have the stand-in under `tag` in the engine that DOCKER_HOST names; build it unless its inputs are unchanged.

    Needs root: `debootstrap` makes a root file system. The one it made is kept for the next build, in `cache_dir` or
    else in the checkout's `.cache`.
    """
    cache = (cache_dir or CACHE).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache):
        host = Tree(Path(sys.prefix))
        standin = Standin(tag, _key(host if host.has_engine() else None))
        if _key_of(tag) == standin.key:
            return standin
        _refuse_unless_root()
        with standin.timed("debootstrap"):
            root = _root_file_system(cache)
        if not host.has_engine():
            with standin.timed("engine"):
                host = _own_tree(cache, root)
        with standin.timed("import"):
            _trust_what_the_host_trusts(root)
            _import(root, host, standin)
        standin.built = True
        return standin


def ensure_debian(tag: str, cache_dir: Path | None = None) -> Standin:
    """The same Debian under `tag`, without an engine: what the images of other engines are based on."""
    cache = (cache_dir or CACHE).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache):
        standin = Standin(tag, _key_of_contents(""))
        if _key_of(tag) == standin.key:
            return standin
        _refuse_unless_root()
        with standin.timed("debootstrap"):
            root = _root_file_system(cache)
        with standin.timed("import"):
            _trust_what_the_host_trusts(root)
            _import(root, None, standin)
        standin.built = True
        return standin


# What goes in


def _own_tree(cache: Path, root: Path) -> Tree:
    """Make an environment for the image's Python and let this interpreter's pip, which knows its indexes, fill it."""
    tree = cache / f"engine-{sha256(' '.join(ENGINE))[:12]}"
    if not Tree(tree).has_engine():
        python = root / "usr/bin/python3"
        checked(str(python), "-m", "venv", "--clear", "--without-pip", str(tree))
        pip = [sys.executable, "-m", "pip", "--python", str(tree / "bin/python3"), "install", "-q"]
        checked(*pip, *ENGINE, timeout=_SLOW)
    return Tree(tree)


def _key(tree: Tree | None) -> str:
    """Everything that decides what the image with the engine holds, as one digest."""
    return _key_of_contents(tree.fingerprint() if tree is not None else " ".join(ENGINE))


def _key_of_contents(packages: str) -> str:
    authorities = "".join(sha256(path.read_bytes()) for path in [*_bundle(), *_local_authorities()])
    return sha256("\n".join([str(RECIPE), SUITE, *SUITE_PACKAGES, packages, authorities]))


def _key_of(tag: str) -> str:
    template = f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}'
    done = run_command("docker", "image", "inspect", "--format", template, tag)
    return done.stdout.strip() if done.returncode == 0 else ""


# The root file system


def _refuse_unless_root() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("Building the stand-in image needs root, for debootstrap.")


def _root_file_system(cache: Path) -> Path:
    """Return a pristine Debian with the image's system packages, made once and kept."""
    root = cache / f"rootfs-{sha256(' '.join([str(RECIPE), SUITE, *SUITE_PACKAGES]))[:12]}"
    if root.exists():
        return root
    if not is_installed("debootstrap"):
        apt_install("debootstrap")
    downloads = cache / "debs"
    downloads.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="rootfs-partial-", dir=cache))
    try:
        # Not the private mode of a temporary directory: it becomes the mode of the image's root.
        partial.chmod(0o755)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(SUITE_PACKAGES)}"]
        checked(*command, f"--cache-dir={downloads}", SUITE, str(partial), *_mirror(), timeout=_SLOW)
        partial.rename(root)
    except BaseException:
        _remove_tree(partial)
        raise
    return root


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses for the suite, if it uses one; else debootstrap's own choice."""
    apt = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"]
    return run_command(*apt).stdout.split()[:1]


def _remove_tree(tree: Path) -> None:
    """Remove an unfinished root file system, but never through something of the machine that is mounted in it."""
    for point in mount_points(tree):
        checked("umount", str(point))
    shutil.rmtree(tree, ignore_errors=True)


def _trust_what_the_host_trusts(root: Path) -> None:
    """Put the host's certificate authorities where both ways of looking them up, file and directory, find them."""
    for left in (root / _LOCAL_CAS).glob("*.crt"):
        left.unlink()
    for path in _local_authorities():
        shutil.copyfile(path, root / _LOCAL_CAS / path.name)
    checked("chroot", str(root), "/usr/sbin/update-ca-certificates")
    for bundle in _bundle():
        shutil.copyfile(bundle, root / _CA_BUNDLE)


def _bundle() -> list[Path]:
    candidates = [os.environ.get("SSL_CERT_FILE"), f"/{_CA_BUNDLE}", ssl.get_default_verify_paths().cafile]
    return [Path(one) for one in candidates if one and Path(one).is_file()][:1]


def _local_authorities() -> list[Path]:
    return sorted(Path(f"/{_LOCAL_CAS}").glob("*.crt"))


# Into the engine


def _import(root: Path, tree: Tree | None, standin: Standin) -> None:
    """Have the root file system and the packages, if any, under the tag."""
    # No two images share their only layer, even if the archives of both hold the same.
    (root / _MADE_OF).write_text(f"{standin.key}\n", encoding="utf-8")
    # The engine refuses an archive that holds the same path twice, and /usr/local has directories of its own.
    files = [one for one in tree.files() if not (root / _place(one)).exists()] if tree is not None else []
    if tree is None or not _import_linked(root, tree, files, standin):
        _import_archive(root, tree.prefix if tree is not None else root, files, standin.key, standin.tag)


def _import_linked(root: Path, tree: Tree, files: Sequence[str], standin: Standin) -> bool:
    """Import the directories only, and link the files of the environment into the layer that has them.

    False where that is impossible: the engine keeps its images elsewhere, or other users may not read the files.
    """
    directories, others = tree.parted(files)
    if not all(map(tree.is_for_everyone, others)):
        return False
    image = _import_archive(root, tree.prefix, directories, standin.key)
    layer = _layer_of(image)
    pairs = ((one, _place(one)) for one in others)
    if layer is None or _made_of(layer) != standin.key or not link_files(tree.prefix.resolve(), layer.resolve(), pairs):
        checked("docker", "image", "rm", image)
        return False
    # Only a whole image gets the tag, which says that it is there.
    checked("docker", "tag", image, standin.tag)
    return True


def _made_of(root: Path) -> str:
    """The key in these files of an image; empty if there is none: the engine may run on another machine."""
    file = root / _MADE_OF
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _layer_of(image: str) -> Path | None:
    """The directory with the files of an image of one layer, if the engine keeps layers as directories."""
    template = '{{if eq .GraphDriver.Name "overlay2"}}{{.GraphDriver.Data.UpperDir}}{{end}}'
    done = run_command("docker", "image", "inspect", "--format", template, image)
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None


def _import_archive(root: Path, prefix: Path, members: Sequence[str], key: str, *tag: str) -> str:
    """Stream the root file system and these members of the prefix as one archive into `docker import`."""
    changes = [
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        'CMD ["python3"]',
        f"LABEL {KEY_LABEL}={key}",
    ]
    options = [part for change in changes for part in ("--change", change)]
    with tempfile.NamedTemporaryFile() as names, tempfile.TemporaryFile() as errors:
        names.write(b"".join(one.encode() + b"\0" for one in members))
        names.flush()
        archive = subprocess.Popen(_tar_command(root, prefix, names.name), stdout=subprocess.PIPE, stderr=errors)
        done = subprocess.run(
            ["docker", "import", *options, "-", *tag],
            stdin=archive.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
        _closed(archive.stdout)
        if archive.wait() or done.returncode:
            errors.seek(0)
            raise RuntimeError(f"The stand-in image was not imported: {done.stderr}{errors.read().decode()}")
    return done.stdout.strip()


def _tar_command(root: Path, prefix: Path, names: str) -> list[str]:
    """One archive of two places: members of the root begin with `./`, and only the others are moved to /usr/local."""
    return [
        "tar",
        "--create",
        "--file=-",
        "--numeric-owner",
        # The image must work for any user, even if the environment was made under a private umask.
        "--mode=a+rX",
        "--transform=s,^[^.],usr/local/&,S",
        f"--transform=s,^usr/local/{re.escape(SITE)},{_LOCAL_SITE},S",
        "--exclude=./dev/*",
        "--exclude=./proc/*",
        "--exclude=./sys/*",
        "--exclude=./var/cache/apt/archives/*.deb",
        "--exclude=./var/lib/apt/lists/*_*",
        "--exclude=./debootstrap",
        f"--directory={root}",
        ".",
        "--no-recursion",
        f"--directory={prefix}",
        "--null",
        f"--files-from={names}",
    ]


def _place(relative: str) -> str:
    """Where the archive moves a file of the environment to, as the two transformations above say it."""
    inside = relative == SITE or relative.startswith(f"{SITE}/")
    return f"{_LOCAL_SITE}{relative[len(SITE) :]}" if inside else f"usr/local/{relative}"


def _closed(stream: IO[bytes] | None) -> None:
    # Lets tar notice that nobody reads any more, where the import ended before it.
    if stream is not None:
        stream.close()


# Small things


# The command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the stand-in for the engine's base image unless it is there already."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.standin_base", description=main.__doc__)
    parser.add_argument("--tag", default=TAG)
    parser.add_argument("--cache", type=Path, default=CACHE, help="directory kept between runs")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        standin = ensure_image(options.tag, options.cache)
    except RuntimeError as error:
        print(f"stand-in image: {error}", file=sys.stderr)
        return 1
    steps = "".join(f", {step} {seconds} s" for step, seconds in standin.seconds.items())
    what = "built" if standin.built else "already there"
    print(f"stand-in image: {standin.tag} {what} in {time.monotonic() - began:.1f} s{steps}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
