"""Sandboxes as tests see them."""

import contextlib

from support import host
from support.process import eventually, must, started, wd, wd_ok

# Ids of sandboxes that are no leak: shared between tests, or left for the other side of a reboot.
SHARED = set()
LEFT_BEHIND = set()


class Sandbox:
    def __init__(self, report):
        self.report = report
        self.id = report["id"]
        self.unit = report["unit"]
        self.path = "/dev/workdir1/sandbox/" + self.id.replace("-", "_2d")

    def exec(self, *argv, options=(), **kwargs):
        return wd("exec", *options, self.id, "--", *argv, **kwargs)

    def exec_ok(self, *argv, options=(), **kwargs):
        return wd_ok("exec", *options, self.id, "--", *argv, **kwargs)

    def sh(self, script, **kwargs):
        """Output of a shell script that has to succeed."""
        return self.exec_ok("sh", "-c", script, **kwargs).text.strip()

    def start(self, *argv, options=(), **popen):
        """An exec in the background: a context manager with its Popen."""
        return started("wd", "exec", *options, self.id, "--", *argv, **popen)

    def inspect(self):
        return wd_ok("inspect", "--json", self.id).json

    @property
    def state(self):
        return self.inspect()["state"]

    @property
    def shim_pid(self):
        return host.main_pid(self.unit)

    @property
    def qemu_pid(self):
        found = [p for p in host.unit_pids(self.unit) if "qemu-system" in host.exe(p)]
        assert len(found) == 1, f"VMM processes of {self.unit}: {found}"
        return found[0]

    @property
    def directory(self):
        return host.STATE / "sandboxes" / self.id

    def usable(self):
        return self.exec("echo", "alive").out == b"alive\n"

    def wait_state(self, *states, timeout=60):
        return eventually(lambda: self.state in states and self.state, timeout,
                          f"{self.id} is {' or '.join(states)}")

    def remove(self):
        """Also when it is gone already."""
        wd_ok("rm", "--force", self.id)


def create(*options, user=None, timeout=180):
    """One that stays up while a test looks at its processes, unless the test says otherwise."""
    if "--idle-timeout" not in options:
        options = ("--idle-timeout", "0", *options)
    return Sandbox(wd_ok("create", "--json", *options, user=user, timeout=timeout).json)


def listed(*options):
    """Entries of `wd ls --all`, by id."""
    return {entry["id"]: entry for entry in wd_ok("ls", "--all", "--json", *options).json}


def tiny():
    """Options for a sandbox that only has to be there."""
    return ["--memory", "128M"]


@contextlib.contextmanager
def temporary(*options, **kwargs):
    sandbox = create(*options, **kwargs)
    try:
        yield sandbox
    finally:
        sandbox.remove()


def remove_shared():
    for sandbox in list(SHARED):
        must("wd", "rm", "--force", sandbox)
        SHARED.discard(sandbox)
