"""The host side: units, processes, the journal, the configuration of workdird."""

import contextlib
import os
import pathlib
import signal
import time

from support.process import eventually, must, run

STATE = pathlib.Path("/var/lib/workdir")
RUNTIME = pathlib.Path("/run/workdir")
CONFIG = pathlib.Path("/etc/workdir/workdird.toml")
CONTROL = RUNTIME / "control"


# ---- systemd

def unit_property(unit, name):
    return must("systemctl", "show", "--value", "-p", name, unit).text.strip()


def unit_properties(unit, *names):
    lines = must("systemctl", "show", "-p", ",".join(names), unit).text.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def main_pid(unit):
    return int(unit_property(unit, "MainPID"))


def cgroup_files(unit, file):
    """That control file of a unit's cgroup, in each hierarchy that has it (v1: several)."""
    group = unit_property(unit, "ControlGroup").lstrip("/")
    root = pathlib.Path("/sys/fs/cgroup")
    places = [root, *(p for p in root.iterdir() if p.is_dir())] if group else []
    return [p / group / file for p in places if (p / group / file).exists()]


def unit_pids(unit):
    """All processes of a unit, without kernel threads (KVM puts one of a machine's beside it)."""
    files = cgroup_files(unit, "cgroup.procs")
    assert files, f"{unit} has no cgroup"
    return sorted(pid for pid in {int(line) for file in files for line in file.read_text().split()}
                  if not is_kernel_thread(pid))


def is_kernel_thread(pid):
    try:
        flags = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[6])
    except FileNotFoundError:
        return False
    return bool(flags & 0x00200000)  # PF_KTHREAD, include/linux/sched.h


def units(pattern):
    """Names of loaded units, dead ones included."""
    listed = must("systemctl", "list-units", "--all", "--plain", "--no-legend", pattern).text
    return {line.split()[0] for line in listed.splitlines() if line.strip()}


# ---- processes

def exe(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def processes(*programs):
    """Ids of processes that run one of these programs."""
    pids = (int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit())
    return {pid for pid in pids if os.path.basename(exe(pid)).split(" ")[0] in programs}


def proc_status(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


def rss(pid):
    return int(proc_status(pid)["VmRSS"].split()[0]) * 1024


# ---- the journal

class Journal:
    """What is logged from here on."""

    def __init__(self, *match):
        self.match = match
        self.since = time.time()  # after a cursor, journalctl 252 drops the first line of a unit

    def text(self, *match):
        run("journalctl", "--sync")
        return must("journalctl", "-q", "-o", "cat", f"--since=@{self.since:.6f}",
                    *self.match, *match).out.decode(errors="replace")


# ---- workdird

def daemon_pid():
    return main_pid("workdird.service")


def daemon_answers():
    return run("busctl", "get-property", "dev.workdir1", "/dev/workdir1", "dev.workdir1.Manager",
               "Version").rc == 0


def restart_daemon():
    must("systemctl", "restart", "workdird.service")


def kill_daemon():
    """kill -9, and waits until systemd has brought it back."""
    old = daemon_pid()
    os.kill(old, signal.SIGKILL)
    eventually(lambda: daemon_pid() not in (0, old) and daemon_answers(), 30, "workdird is back")


def write_config(text):
    temporary = CONFIG.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(CONFIG)


@contextlib.contextmanager
def configured(text):
    """workdird with this configuration; the old one afterwards."""
    before = CONFIG.read_text() if CONFIG.exists() else None
    write_config(text)
    try:
        restart_daemon()
        yield
    finally:
        if before is None:
            CONFIG.unlink()
        else:
            write_config(before)
        run("systemctl", "reset-failed", "workdird.service")
        restart_daemon()
