"""What sandboxes leave on a host, so that tests can tell that nothing stayed."""

import os
import pathlib

from support import host
from support.sandbox import LEFT_BEHIND, SHARED, listed


def _names(directory):
    try:
        return {entry.name for entry in directory.iterdir()}
    except FileNotFoundError:
        return set()


def _tree(root):
    """All paths below a directory. os.walk, unlike a glob, does not mind what goes meanwhile."""
    return {pathlib.Path(parent, name) for parent, directories, files in os.walk(root)
            for name in directories + files}


def _processes():
    found = set()
    for pid in host.processes("qemu-system-x86_64", "qemu-system-x86_64-microvm", "workdir-shim",
                              "qemu-img", "mmdebstrap", "workdir-image-build"):
        try:
            group = pathlib.Path(f"/proc/{pid}/cgroup").read_text()
            found.add(f"process {pid} {os.path.basename(host.exe(pid))} in {group.split(':')[-1]}")
        except OSError:
            continue
    return found


def _namespaces():
    """Network namespaces that are kept by a mount."""
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if " - nsfs " in line}


def _cgroups():
    return {f"cgroup {path.name}" for path in _tree("/sys/fs/cgroup")
            if path.parent.name == "workdir.slice" and path.name.startswith("workdir-")}


def snapshot():
    """Everything that a sandbox or an image build could leave, less what is shared on purpose."""
    found = {f"unit {name}" for name in host.units("workdir-*")}
    found |= _processes()
    found |= {f"directory {name}" for name in _names(host.STATE / "sandboxes")}
    found |= {f"images: {path.relative_to(host.STATE)}" for path in _tree(host.STATE / "images")}
    found |= {f"state: {name}" for name in _names(host.STATE)}
    found |= {f"systemd {path}" for path in pathlib.Path("/run/systemd/units").glob("*:workdir-sb-*")}
    # All but the probe's result, which is kept for this boot of the host.
    found |= {f"runtime {path}" for path in _tree(host.RUNTIME)
              if path != host.RUNTIME / "accel"}
    found |= {f"transient {name}" for name in _names(pathlib.Path("/run/systemd/transient"))
              if name.startswith("workdir-")}
    found |= {f"private {name}" for name in _names(pathlib.Path("/run/private"))
              if "workdir" in name or name.startswith("sb-")}
    found |= {f"namespace {path}" for path in _namespaces()}
    found |= _cgroups()
    found |= {f"row {sandbox}" for sandbox in listed()}
    # Golden snapshots are made in the background, at times of their own, and stay.
    return {item for item in found
            if not any(word in item for word in SHARED | LEFT_BEHIND | {"golden"})}


def left_over(before):
    # SQLite makes and removes its own files beside the database.
    own = {"state: state.db", "state: state.db-wal", "state: state.db-shm"}
    return sorted(snapshot() - before - own)
