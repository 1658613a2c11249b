#!/usr/bin/python3
# SPDX-License-Identifier: AGPL-3.0-or-later
"""workdir-image-build: makes one version of a sandbox image from a recipe.

A recipe is a folder: recipe.toml, and optionally overlay/, whose files are copied over the root.
The result is IMAGES_DIR/NAME/VERSION/{root.raw,image.toml}; root.raw is a sparse ext4 file system
without a partition table, and nothing in it is ours: the agent comes in the guest's initramfs.

workdird runs this as root in a transient unit. Everything is made in the staging directory (which
must not exist and must be on the file system of IMAGES_DIR) and appears by one rename at the end.
Any failure or signal removes the staging directory; the last line on stderr then says what went
wrong and what to do about it. Progress goes to stdout and, as STATUS=, to the notify socket.
"""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib

PROGRAM = "workdir-image-build"
TOOL_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1 << 20
GIB = 1 << 30

# The root file system grows online up to this size: space for its group descriptors is reserved.
MAX_GROWTH = 1 << 40
MIN_SIZE = 256 * MIB
MAX_SIZE = 256 * GIB
# Every feature is named, so the host's mke2fs.conf has no say: any ext4 of Linux 6.1 takes these.
EXT4_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,"
    "large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)
# A journal is dirtied from end to end in every sandbox's own layer, so it is kept short.
JOURNAL_MIB = 32
# Room for the unpacked tree and package archives beside the file system, while building.
BUILD_RESERVE = 512 * MIB

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
VERSION_PATTERN = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]{0,62}")
SUITE_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,30}")
PACKAGE_PATTERN = re.compile(r"[a-z0-9][a-z0-9+.-]+")
LOCALE_PATTERN = re.compile(r"[A-Za-z_]+\.UTF-8")
USER_PATTERN = re.compile(r"[a-z_][a-z0-9_-]{0,30}")

DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Lines of mmdebstrap on stderr that begin a phase: (pattern, percent when it begins, its name).
PHASES = (
    (re.compile(r"I: running (--setup-hook|apt-get update)"), 2, "reading package lists"),
    (re.compile(r"I: downloading packages"), 6, "downloading packages"),
    (re.compile(r"I: extracting archives"), 14, "unpacking the base system"),
    (re.compile(r"I: installing essential packages"), 22, "installing the base system"),
    (re.compile(r"I: (downloading|installing) (apt|remaining)"), 34, "installing packages"),
    (re.compile(r"I: running --customize-hook"), 70, "configuring"),
    (re.compile(r"I: cleaning package lists"), 74, "cleaning up"),
)

# What a message of apt or dpkg means: (pattern, remedy).
REMEDIES = (
    (r"No space left on device", "free space on the file system of the images directory"),
    (r"Temporary failure resolving|Could not resolve", "check the host's DNS and apt sources"),
    (
        r"Unable to connect|Could not connect|Connection timed out|Connection failed",
        "check that the host reaches its package mirror (apt-get update)",
    ),
    (r"404 +Not Found", "check the recipe's suite, mirror and components"),
    (r"Unable to locate package|has no installation candidate", "correct the recipe's packages"),
    (r"NO_PUBKEY|not signed|EXPKEYSIG", "install the archive's keyring on the host"),
    (r"is not valid yet|Release file .* expired", "set the host's clock"),
)


class BuildError(Exception):
    """A failure with a cause and a remedy, for the person who asked for the image."""


class Interrupted(BaseException):
    """A signal that ends the build."""

    def __init__(self, signum):
        super().__init__(signum)
        self.signum = signum


Recipe = collections.namedtuple(
    "Recipe", "description suite size packages locale mirror components user uid"
)


# --- the recipe ----------------------------------------------------------------------------------


def parse_size(text):
    """Bytes of "2G", "512M" (powers of 1024)."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([MG])", text)
    if not match:
        raise BuildError(f"size {text!r} is not a number followed by M or G, as in \"2G\"")
    size = int(match[1]) * {"M": MIB, "G": GIB}[match[2]]
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise BuildError(f"size {text!r} is not between 256M and 256G")
    return size


def parse_recipe(text, where="recipe.toml"):
    """Recipe from the text of a recipe.toml; unknown keys and wrong types are errors."""
    types = {
        "description": str,
        "suite": str,
        "size": str,
        "packages": list,
        "locale": str,
        "mirror": str,
        "components": list,
        "user": dict,
    }
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"{where}: {error}; correct the file") from error

    def check(condition, message):
        if not condition:
            raise BuildError(f"{where}: {message}")

    for key, value in data.items():
        check(key in types, f"unknown key {key!r}; known are {', '.join(sorted(types))}")
        check(isinstance(value, types[key]), f"{key} must be a {types[key].__name__}")
    for key in ("suite", "packages"):
        check(key in data, f"{key} is missing")
    for key in ("packages", "components"):
        for item in data.get(key, []):
            check(isinstance(item, str), f"{key} must hold strings only, not {item!r}")
            check(PACKAGE_PATTERN.fullmatch(item), f"{key} has {item!r}, which cannot be a name")
    check(SUITE_PATTERN.fullmatch(data["suite"]), f"suite {data['suite']!r} cannot be a suite")
    locale = data.get("locale", "C.UTF-8")
    check(LOCALE_PATTERN.fullmatch(locale), f"locale {locale!r} is not a UTF-8 locale")
    mirror = data.get("mirror")
    check(
        mirror is None or re.fullmatch(r"(https?|file)://[^\s\[\]]+", mirror),
        f"mirror {mirror!r} is not an http, https or file URL",
    )
    user = data.get("user", {})
    for key in user:
        check(key in ("name", "uid"), f"unknown key {key!r} in user; known are name, uid")
    name, uid = user.get("name"), user.get("uid", 1000)
    if user:
        check(isinstance(name, str) and USER_PATTERN.fullmatch(name), "user.name is not a user name")
        check(
            isinstance(uid, int) and not isinstance(uid, bool) and 1000 <= uid < 60000,
            "user.uid is not between 1000 and 59999",
        )
    return Recipe(
        description=data.get("description", ""),
        suite=data["suite"],
        size=parse_size(data.get("size", "2G")),
        packages=tuple(dict.fromkeys(data["packages"])),
        locale=locale,
        mirror=mirror,
        components=tuple(data.get("components", ["main"])),
        user=name,
        uid=uid,
    )


def overlay_entries(overlay):
    """(path below overlay, lstat) of everything in it, sorted; only files, links, directories."""
    if not overlay.is_dir():
        return []
    found = []
    for base, directories, files in os.walk(overlay):
        for name in directories + files:
            path = pathlib.Path(base, name)
            info = path.lstat()
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
                    or stat.S_ISLNK(info.st_mode)):
                raise BuildError(f"{path} is neither a file, a directory nor a symbolic link")
            found.append((path.relative_to(overlay), info))
    return sorted(found)


def recipe_hash(recipe_dir):
    """SHA-256 over everything of a recipe that gets into the image."""
    digest = hashlib.sha256()

    def add(*parts):
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)

    add(b"recipe", (recipe_dir / "recipe.toml").read_bytes())
    overlay = recipe_dir / "overlay"
    for path, info in overlay_entries(overlay):
        if stat.S_ISLNK(info.st_mode):
            kind, content = b"link", os.readlink(overlay / path).encode()
        elif stat.S_ISREG(info.st_mode):
            kind = b"exec" if info.st_mode & 0o100 else b"file"
            content = (overlay / path).read_bytes()
        else:
            kind, content = b"dir", b""
        add(kind, str(path).encode(), content)
    return digest.hexdigest()


# --- where packages come from --------------------------------------------------------------------


def debian_sources(suite, components, targets):
    """sources.list lines for a Debian suite from what the host's own apt knows.

    targets: (label, URI) of each package index of the host; label is the Release file's. The
    host's suite does not matter: its mirror has the others too. None if the host has no Debian
    mirror, and then mmdebstrap's own default is used.
    """
    main = [uri for label, uri in targets if label == "Debian"]
    security = [uri for label, uri in targets if label == "Debian-Security"]
    if not main:
        return None
    options = f"[signed-by={DEBIAN_KEYRING}]"
    parts = " ".join(components)
    lines = [f"deb {options} {main[0]} {suite} {parts}"]
    if suite not in ("sid", "unstable", "experimental"):
        lines.append(f"deb {options} {main[0]} {suite}-updates {parts}")
        if security:
            lines.append(f"deb {options} {security[0]} {suite}-security {parts}")
    return lines


def host_targets():
    """(label, URI) of the host's package indexes; empty where apt cannot say."""
    command = [
        "apt-get", "indextargets", "--format", "$(LABEL)\t$(REPO_URI)", "Created-By: Packages",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    return [(row[0], row[1].rstrip("/")) for row in rows if len(row) == 2]


def host_apt_options():
    """apt settings of the host that a download needs as well: proxies and what to believe."""
    keys = (
        "Acquire::http::Proxy", "Acquire::https::Proxy",
        "Acquire::Check-Valid-Until", "Acquire::Check-Date",
    )
    options = []
    for key in keys:
        command = ["apt-config", "shell", "value", key]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        match = re.fullmatch(r"value='([^'\"]*)'\n?", output)
        if match and match[1]:
            options.append(f'{key} "{match[1]}";')
    return options


def mmdebstrap_command(recipe, root, sources, apt_options):
    """argv of mmdebstrap; what it prints on stderr is matched with PHASES."""
    packages = list(recipe.packages)
    hooks = []
    if not recipe.locale.startswith("C."):
        packages.append("locales")
        hooks.append(
            f'echo "{recipe.locale} UTF-8" > "$1/etc/locale.gen" && chroot "$1" locale-gen'
        )
    if recipe.user:
        hooks.append(
            f'chroot "$1" useradd --create-home --shell /bin/bash --uid {recipe.uid} {recipe.user}'
        )
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
    command += [f"--components={','.join(recipe.components)}"]
    command += [f"--aptopt={option}" for option in
                ['Apt::Install-Recommends "false";', *apt_options]]
    # A tree that is thrown away on a crash need not survive one.
    command.append("--dpkgopt=force-unsafe-io")
    if packages:
        command.append(f"--include={','.join(packages)}")
    command += [f"--customize-hook={hook}" for hook in hooks]
    command += [recipe.suite, str(root)]
    if recipe.mirror:
        command.append(recipe.mirror)
    else:
        command += sources or []
    return command


# --- the root tree -------------------------------------------------------------------------------


def below(root, path):
    """root/path, refused if a parent of it is a symbolic link (which could lead out of root)."""
    target = root
    for part in pathlib.PurePath(path).parts[:-1]:
        target = target / part
        if target.is_symlink():
            raise BuildError(
                f"/{path}: /{target.relative_to(root)} is a symbolic link in the image; "
                f"use the path that it leads to"
            )
    return root / path


def put(root, path, text, mode=0o644):
    """Writes a file of the image, in place of whatever was there."""
    target = below(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.write_text(text, encoding="utf-8")
    target.chmod(mode)


def clear(root, path):
    """Empties a directory of the image, if it is one."""
    target = below(root, path)
    if target.is_symlink() or not target.is_dir():
        return
    for entry in target.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def finish_tree(root, recipe):
    """What every sandbox image has, whatever its recipe: no identity, no traces of the build."""
    # Each sandbox gets its own from the agent.
    put(root, "etc/machine-id", "")
    below(root, "var/lib/dbus/machine-id").unlink(missing_ok=True)
    put(root, "etc/hostname", "sandbox\n")
    put(root, "etc/hosts", "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n"
                           "::1\tlocalhost ip6-localhost ip6-loopback\n")
    # A plain file: no resolver daemon runs in the guest, the agent writes it.
    put(root, "etc/resolv.conf", "")
    put(root, "etc/fstab", "")
    put(root, "etc/default/locale", f"LANG={recipe.locale}\n")
    for key in below(root, "etc/ssh/x").parent.glob("ssh_host_*"):
        key.unlink()
    # Only there for the build; the guest's way to the network is not the host's.
    for path in ("etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap"):
        below(root, path).unlink(missing_ok=True)
    # The guest mounts a devtmpfs there.
    clear(root, "dev")
    for path in ("run", "tmp", "var/tmp", "var/lib/apt/lists", "var/cache/apt", "var/cache/debconf",
                 "var/log/apt"):
        clear(root, path)
    for directory in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        below(root, directory).mkdir(parents=True, exist_ok=True)
    for log in below(root, "var/log/x").parent.glob("*.log"):
        log.unlink()
    workspace = below(root, "workspace")
    workspace.mkdir(exist_ok=True)
    workspace.chmod(0o755)
    if recipe.user:
        os.chown(workspace, recipe.uid, recipe.uid)


def apply_overlay(overlay, root):
    """Copies overlay/ over the root: owner root, executable bits kept, links as they are."""
    for path, info in overlay_entries(overlay):
        target = below(root, path)
        if stat.S_ISDIR(info.st_mode):
            if target.is_symlink():
                raise BuildError(
                    f"overlay/{path} is a directory, but a symbolic link in the image; use the path "
                    f"that it leads to"
                )
            if not target.is_dir():
                target.mkdir()
                target.chmod(0o755)
            continue
        if target.is_dir() and not target.is_symlink():
            raise BuildError(f"overlay/{path} is a file, but the image has a directory there")
        target.unlink(missing_ok=True)
        if stat.S_ISLNK(info.st_mode):
            target.symlink_to(os.readlink(overlay / path))
        else:
            shutil.copyfile(overlay / path, target)
            target.chmod(0o755 if info.st_mode & 0o100 else 0o644)


def tree_size(root):
    """Bytes that the tree takes in 4 KiB blocks, and the number of its inodes."""
    size = inodes = 0
    seen = set()
    for base, directories, files in os.walk(root):
        for name in directories + files:
            info = os.lstat(os.path.join(base, name))
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            inodes += 1
            size += -(-info.st_size // 4096) * 4096
    return size, inodes


def installed_packages(root):
    """"name version" of every installed package, sorted, from dpkg's status file."""
    text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    packages = []
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            packages.append(f"{fields['Package']} {fields['Version']}")
    return sorted(packages)


# --- the result ----------------------------------------------------------------------------------


def image_toml(values):
    """TOML text of a flat table of strings, integers and lists of strings."""
    lines = []
    for key, value in values.items():
        if isinstance(value, (list, tuple)):
            items = "".join(f"    {json.dumps(item, ensure_ascii=False)},\n" for item in value)
            lines.append(f"{key} = [\n{items}]\n")
        else:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)


def mke2fs_command(root, image, size):
    extended = f"lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0,resize={MAX_GROWTH // 4096}"
    return [
        "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-L", "workdir",
        "-O", EXT4_FEATURES, "-J", f"size={JOURNAL_MIB}", "-E", extended, "-d", str(root),
        str(image), f"{size // 1024}k",
    ]


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def error_of(lines):
    """(cause, remedy) from the last lines that a failed tool printed."""
    for line in reversed(lines):
        for pattern, remedy in REMEDIES:
            if re.search(pattern, line):
                return line.strip(), remedy
    telling = [line.strip() for line in lines if re.match(r"(E|Err|dpkg|mke2fs|e2fsck)\b", line)]
    cause = telling[0] if telling else (lines[-1].strip() if lines else "no message")
    return cause, "see the lines above (journalctl -u of this unit)"


class Builder:
    """One build, from an absent staging directory to the image in its place."""

    def __init__(self, args):
        self.recipe_dir = pathlib.Path(args.recipe).absolute()
        self.images_dir = pathlib.Path(args.images_dir).absolute()
        self.staging = pathlib.Path(args.staging).absolute()
        self.name = args.name
        self.version = args.version
        self.target = self.images_dir / self.name / self.version
        self.child = None
        self.percent = 0  # of the last report
        self.staging_made = False

    # Progress

    def report(self, percent, phase):
        print(f"{percent:3d}% {phase}", flush=True)
        self.percent = percent
        self.notify(percent, phase)

    @staticmethod
    def notify(percent, phase):
        """The status of the unit; the last one outlives us and says how it ended."""
        address = os.environ.get("NOTIFY_SOCKET", "")
        if not address:
            return
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(f"STATUS={percent}% {phase}".encode(), address)
        except OSError:
            pass  # Nobody listens: the build does not depend on it.

    # Helper processes

    def run(self, command, on_line=None):
        """Runs a tool with its stderr (and stdout) passed on; BuildError if it fails."""
        tail = collections.deque(maxlen=60)
        environment = {
            "PATH": TOOL_PATH,
            "LC_ALL": "C.UTF-8",
            "HOME": "/nonexistent",
            "TMPDIR": str(self.staging / "tmp"),
            "DEBIAN_FRONTEND": "noninteractive",
        }
        try:
            # A session of its own: a signal to us reaches it only through stop_child(), in order.
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise BuildError(f"{command[0]} is not installed; apt-get install {command[0]}") from error
        with self.child.stdout as output:
            for line in output:
                line = line.rstrip("\n")
                if line:
                    tail.append(line)
                    print(line, file=sys.stderr, flush=True)
                    if on_line:
                        on_line(line)
        status = self.child.wait()
        self.child = None
        if status:
            cause, remedy = error_of(list(tail))
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise BuildError(f"{os.path.basename(command[0])} failed ({how}): {cause}; {remedy}")

    def stop_child(self):
        if not self.child:
            return
        # mmdebstrap unmounts and removes its own when it is told to stop.
        for signum, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(self.child.pid, signum)
                self.child.wait(seconds)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.child = None

    # Steps

    def prepare(self):
        recipe_file = self.recipe_dir / "recipe.toml"
        try:
            text = recipe_file.read_text(encoding="utf-8")
        except OSError as error:
            raise BuildError(
                f"cannot read {recipe_file}: {error.strerror}; name a folder that has a recipe.toml"
            ) from error
        except UnicodeDecodeError as error:
            raise BuildError(f"{recipe_file} is not UTF-8 text; correct the file") from error
        recipe = parse_recipe(text, str(recipe_file))
        if not NAME_PATTERN.fullmatch(self.name):
            raise BuildError(f"image name {self.name[:80]!r} is not made of a-z, 0-9 and hyphens")
        if not VERSION_PATTERN.fullmatch(self.version):
            raise BuildError(f"version {self.version[:80]!r} is not made of letters, digits, . + ~ -")
        if self.target.exists():
            raise BuildError(f"{self.target} exists; build another version or remove the image")
        if os.geteuid() != 0:
            raise BuildError("only root can build images; use `wd image build`")
        for tool, package in (("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs"),
                              ("e2fsck", "e2fsprogs"), ("unshare", "util-linux")):
            if not shutil.which(tool, path=TOOL_PATH):
                raise BuildError(f"{tool} is not installed; apt-get install {package}")
        if not self.images_dir.is_dir():
            raise BuildError(f"{self.images_dir} is not a directory; create it")

        info = os.statvfs(self.images_dir)
        free, needed = info.f_bavail * info.f_frsize, recipe.size + BUILD_RESERVE
        if free < needed:
            raise BuildError(
                f"building this image may take {needed // MIB} MiB, but the file system of "
                f"{self.images_dir} has {free // MIB} MiB free; free some space or lower size in "
                f"{recipe_file}"
            )
        try:
            self.staging.mkdir(mode=0o700)
        except OSError as error:
            raise BuildError(
                f"cannot create the staging directory {self.staging}: {error.strerror}; "
                f"choose one that does not exist, in an existing directory"
            ) from error
        self.staging_made = True
        if self.staging.stat().st_dev != self.images_dir.stat().st_dev:
            raise BuildError(
                f"{self.staging} is not on the file system of {self.images_dir}; choose a staging "
                f"directory there"
            )
        return recipe

    def bootstrap(self, recipe, root):
        def on_line(line):
            for pattern, percent, phase in PHASES:
                if percent > self.percent and pattern.match(line):
                    self.report(percent, phase)

        sources = None if recipe.mirror else debian_sources(
            recipe.suite, recipe.components, host_targets())
        command = mmdebstrap_command(recipe, root, sources, host_apt_options())
        # Whatever gets mounted in the tree is gone with the process, however that ends.
        self.run(["unshare", "--mount", "--propagation=private", "--", *command], on_line)

    def make_file_system(self, recipe, root, image):
        size, inodes = tree_size(root)
        # Directories, extents and the inode tables come on top.
        needed = size + inodes * 256 + JOURNAL_MIB * MIB + recipe.size // 50
        if needed > recipe.size:
            raise BuildError(
                f"the tree takes {needed // MIB} MiB, more than the recipe's size of "
                f"{recipe.size // MIB} MiB; raise size in the recipe"
            )
        self.run(mke2fs_command(root, image, recipe.size))
        self.report(90, "checking the file system")
        self.run(["e2fsck", "-f", "-n", str(image)])

    def publish(self, recipe, packages, digest):
        out = self.staging / "out"
        image = out / "root.raw"
        info = image.stat()
        now = datetime.datetime.now(datetime.timezone.utc)
        (out / "image.toml").write_text(image_toml({
            "format": 1,
            "name": self.name,
            "version": self.version,
            "description": recipe.description,
            "arch": "x86_64",
            "suite": recipe.suite,
            "recipe_sha256": digest,
            "created": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "created_us": int(now.timestamp() * 1_000_000),
            "size_bytes": info.st_size,
            "allocated_bytes": info.st_blocks * 512,
            "packages": packages,
        }), encoding="utf-8")
        # Never written again: running sandboxes rest on it.
        image.chmod(0o400)
        (out / "image.toml").chmod(0o444)
        for path in (image, out / "image.toml", out):
            fsync(path)
        parent = self.target.parent
        parent.mkdir(mode=0o700, exist_ok=True)
        if self.target.exists():
            raise BuildError(f"{self.target} was made by somebody else meanwhile; try again")
        os.rename(out, self.target)
        fsync(parent)
        fsync(self.images_dir)

    def build(self):
        self.report(0, "starting")
        recipe = self.prepare()
        digest = recipe_hash(self.recipe_dir)
        root, out = self.staging / "root", self.staging / "out"
        out.mkdir(mode=0o700)
        (self.staging / "tmp").mkdir(mode=0o1777)
        (self.staging / "tmp").chmod(0o1777)
        # apt's download user looks into the tree.
        self.staging.chmod(0o711)
        self.bootstrap(recipe, root)
        self.report(76, "applying the overlay")
        finish_tree(root, recipe)
        apply_overlay(self.recipe_dir / "overlay", root)
        packages = installed_packages(root)
        self.report(80, "making the file system")
        self.make_file_system(recipe, root, out / "root.raw")
        self.report(95, "writing to disk")
        self.publish(recipe, packages, digest)
        self.clean()
        self.report(100, f"{self.name} {self.version}: {len(packages)} packages")

    def clean(self):
        """Removes the staging directory; never another file system that is mounted in it."""
        if self.staging_made:
            subprocess.run(
                ["rm", "-rf", "--one-file-system", "--", str(self.staging)],
                check=False, start_new_session=True,
            )


def main():
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Makes one version of a sandbox image from a recipe.")
    parser.add_argument("--recipe", required=True, metavar="DIR", help="folder with a recipe.toml")
    parser.add_argument("--images-dir", required=True, metavar="DIR")
    parser.add_argument("--name", required=True, help="name of the image")
    parser.add_argument("--version", required=True, help="version of the image")
    parser.add_argument("--staging", required=True, metavar="DIR",
                        help="directory to create and work in, on the same file system")
    args = parser.parse_args()

    def on_signal(signum, _frame):
        # The first one counts; a second must not interrupt the cleaning up.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    os.umask(0o022)

    builder = Builder(args)
    try:
        builder.build()
        return 0
    except BuildError as error:
        status, message = 1, str(error)
    except Interrupted as interruption:
        status = 128 + interruption.signum
        message = f"stopped by {signal.Signals(interruption.signum).name}; nothing is left behind"
    except OSError as error:
        status, message = 1, f"{error}; see the lines above"
    builder.stop_child()
    builder.clean()
    builder.notify(builder.percent, message)
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
