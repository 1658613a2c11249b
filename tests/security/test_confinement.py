"""What a VMM that a guest has taken over can reach: nothing. Read from the kernel's own view of
the processes, tried as their user in their mount namespace, and tried by a program that runs in
the place of QEMU under all of the unit's confinement."""

import os
import pathlib
import re
import sys

import pytest

from support import host
from support.process import eventually, must, run, wd
from support.sandbox import tiny

daemon_may_restart = True

PROBE = pathlib.Path("/usr/local/lib/workdir-test/vmm-probe")


@pytest.fixture(scope="module")
def pair(no_leaks):
    """Two sandboxes, one of which is to be kept from the other."""
    from support.sandbox import temporary
    with temporary(*tiny()) as one, temporary(*tiny()) as other:
        yield one, other


@pytest.fixture(scope="module")
def one(pair):
    return pair[0]


def as_the_vmm(sandbox, *argv):
    """A program as the unit's user in its mount namespace, without privileges."""
    status = host.proc_status(sandbox.qemu_pid)
    uid, gid = status["Uid"].split()[0], status["Gid"].split()[0]
    return run("nsenter", "-t", sandbox.qemu_pid, "-m", "--", "setpriv", "--reuid", uid, "--regid",
               gid, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
               "--", *argv)


# ---- as the kernel sees them

@pytest.mark.target
def test_no_process_has_a_capability_or_can_gain_one(one):
    for pid in host.unit_pids(one.unit):
        status = host.proc_status(pid)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[kind], 16) == 0, (host.exe(pid), kind, status[kind])
        assert status["NoNewPrivs"] == "1"


@pytest.mark.target
def test_every_process_is_under_seccomp_filters(one):
    for pid in host.unit_pids(one.unit):
        status = host.proc_status(pid)
        assert status["Seccomp"] == "2"
        assert int(status["Seccomp_filters"]) >= 2
    shim = int(host.proc_status(one.shim_pid)["Seccomp_filters"])
    assert int(host.proc_status(one.qemu_pid)["Seccomp_filters"]) > shim, "the spawn guard"


@pytest.mark.target
def test_each_sandbox_has_a_user_of_its_own(pair):
    users = []
    for sandbox in pair:
        for pid in host.unit_pids(sandbox.unit):
            users.append(set(host.proc_status(pid)["Uid"].split()))
    flat = set().union(*users)
    assert all(len(user) == 1 for user in users) and len(flat) == 2 and "0" not in flat
    daemon = host.proc_status(host.daemon_pid())["Uid"].split()[0]
    assert daemon not in flat


@pytest.mark.target
def test_namespaces_are_its_own(pair):
    one, other = pair
    for kind in ("mnt", "net", "ipc"):
        links = [os.readlink(f"/proc/{pid}/ns/{kind}") for pid in (1, one.qemu_pid, other.qemu_pid)]
        assert links[0] != links[1]
        if kind != "net":  # one empty namespace may serve all
            assert links[1] != links[2]
        assert os.readlink(f"/proc/{one.shim_pid}/ns/{kind}") == links[1]


@pytest.mark.target
def test_the_network_namespace_is_empty(one):
    shown = must("nsenter", "-t", one.qemu_pid, "-n", "ip", "-j", "addr").json
    assert [link["ifname"] for link in shown] == ["lo"]
    routes = must("nsenter", "-t", one.qemu_pid, "-n", "ip", "route", "show", "table", "all").text
    assert "default" not in routes


@pytest.mark.target
def test_no_core_dump_holds_a_guests_memory(one):
    for pid in host.unit_pids(one.unit):
        limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0\s", limits)


@pytest.mark.target
def test_the_vmm_gets_open_files_and_none_of_another(pair):
    one, other = pair
    allowed = (str(one.directory), str(host.STATE / "images"), "/usr/lib/workdir/guest/",
               "socket:", "pipe:", "anon_inode:", "/dev/kvm", "/dev/null", "/memfd:", "/proc/",
               "/sys/fs/cgroup/", "/dev/shm", "/tmp", "/var/tmp")
    for pid in host.unit_pids(one.unit):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(fd)
            except FileNotFoundError:
                continue
            assert target.startswith(allowed), (host.exe(pid), target)
            assert other.id not in target and not os.path.isdir(fd), target
            if "/images/" in target or "/guest/" in target:
                flags = re.search(r"flags:\s+(\d+)", pathlib.Path(
                    f"/proc/{pid}/fdinfo/{fd.name}").read_text())[1]
                assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, f"{target} can be written"


@pytest.mark.target
def test_qemu_is_told_to_lock_itself_in(one):
    argv = pathlib.Path(f"/proc/{one.qemu_pid}/cmdline").read_bytes().decode().split("\0")
    if not argv[0].endswith("-microvm"):  # Debian builds that one without seccomp
        sandbox = argv[argv.index("-sandbox") + 1]
        for rule in ("on", "obsolete=deny", "elevateprivileges=deny", "spawn=deny",
                     "resourcecontrol=deny"):
            assert rule in sandbox.split(",")
    assert "-no-user-config" in argv and "-nodefaults" in argv
    assert not any("hostfwd" in arg or "tcp:" in arg or arg == "-monitor" for arg in argv)
    assert one.id not in " ".join(argv) or str(host.STATE) not in " ".join(argv)


# ---- as its user, in its mount namespace

@pytest.mark.target
def test_nothing_can_be_written(one):
    for path in ("/", "/etc", "/usr", "/usr/lib/workdir", "/var", "/var/lib", "/var/cache", "/opt",
                 "/root", "/home", "/run", "/run/systemd", "/boot", "/sys", "/proc/sys/kernel",
                 "/tmp", "/var/tmp", "/dev/shm"):
        assert as_the_vmm(one, "sh", "-c", f"echo x > {path}/wdtest").rc != 0, path
    for line in pathlib.Path(f"/proc/{one.qemu_pid}/mountinfo").read_text().splitlines():
        where, options = line.split()[4], line.split()[5].split(",")
        assert "ro" in options or where.startswith(("/dev", "/tmp", "/var/tmp", "/proc", "/run")), line


@pytest.mark.target
def test_state_and_other_sandboxes_cannot_be_read(pair):
    one, other = pair
    for path in (host.STATE, host.STATE / "state.db", other.directory, other.directory / "disk.qcow2",
                 one.directory / "console.log", host.STATE / "images", host.CONTROL,
                 host.CONTROL / f"{other.id}.sock", "/etc/shadow", "/root", "/etc/workdir",
                 "/run/systemd/private", f"/proc/{other.qemu_pid}/mem"):
        assert as_the_vmm(one, "cat", path).rc != 0, path
        listed = as_the_vmm(one, "ls", "-A", f"{path}/")  # of a file: not a directory
        assert listed.out == b"" or listed.rc != 0, path


@pytest.mark.target
def test_processes_of_the_host_are_invisible(pair):
    one, other = pair
    seen = {int(name) for name in as_the_vmm(one, "ls", "/proc").text.split() if name.isdigit()}
    assert not seen & {1, host.daemon_pid(), other.qemu_pid, other.shim_pid, os.getpid()}
    for pid in (1, other.qemu_pid):
        assert as_the_vmm(one, "cat", f"/proc/{pid}/cmdline").rc != 0
    assert as_the_vmm(one, "cat", "/proc/meminfo").rc != 0, "ProcSubset=pid"


@pytest.mark.target
def test_only_the_expected_devices_are_there(one):
    usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue",
             "hugepages", "log", "console", "core", "fd", "stdin", "stdout", "stderr", "char"}
    accel = {"kvm"} if one.report["accel"] == "kvm" else set()
    there = set(as_the_vmm(one, "ls", "-A", "/dev").text.split())
    assert there <= usual | accel, there - usual - accel
    assert host.unit_property(one.unit, "DevicePolicy") == "closed"


@pytest.mark.target
def test_the_guests_vmm_cannot_use_workdir_or_systemd(one):
    """Even if it reached the bus, it is nobody there."""
    for command in (["wd", "ls"], ["wd", "create"], ["systemctl", "stop", "workdird"],
                    ["busctl", "call", "dev.workdir1", "/dev/workdir1", "dev.workdir1.Manager",
                     "List", "a{sv}", "0"]):
        assert as_the_vmm(one, *command).rc != 0, command


# ---- in the place of QEMU

PROBE_TEXT = '''#!/usr/bin/python3 -IS
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
result = {}
def call(name, *args):
    ctypes.set_errno(0)
    rc = getattr(libc, name)(*args)
    result[name + ":" + str(args[0] if args else "")] = os.strerror(ctypes.get_errno()) if rc < 0 else "done"
def attempt(name, function):
    try:
        function()
        result[name] = "done"
    except OSError as error:
        result[name] = error.strerror or str(error)
for flag, name in ((0x10000000, "user"), (0x20000, "mount"), (0x40000000, "net"), (0x20000000, "pid")):
    ctypes.set_errno(0)
    result["unshare " + name] = "done" if libc.unshare(flag) == 0 else os.strerror(ctypes.get_errno())
call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
call("ptrace", 16, 1, 0, 0)
call("chroot", b"/")
call("setuid", 0)
call("sethostname", b"x", 1)
call("reboot", 0)
call("swapoff", b"/none")
call("init_module", 0, 0, b"")
call("personality", 0x0020000)
attempt("socket inet", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("socket inet6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("socket packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("socket netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("socket vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(path)
attempt("bus", lambda: connect("/run/dbus/system_bus_socket"))
attempt("systemd", lambda: connect("/run/systemd/private"))
attempt("kill 1", lambda: os.kill(1, 0))
attempt("open /dev/kvm", lambda: os.open("/dev/kvm", os.O_RDWR))
attempt("open /dev/loop-control", lambda: os.open("/dev/loop-control", os.O_RDWR))
attempt("open /dev/net/tun", lambda: os.open("/dev/net/tun", os.O_RDWR))
attempt("mknod", lambda: os.mknod("/tmp/sda", 0o60600, os.makedev(8, 0)))
attempt("suid", lambda: (open("/tmp/suid", "w").close(), os.chmod("/tmp/suid", 0o4755)))
attempt("list state", lambda: os.listdir("/var/lib/workdir"))
attempt("list control", lambda: os.listdir("/run/workdir/control"))
attempt("list root", lambda: os.listdir("/root"))
attempt("list homes", lambda: os.listdir("/home") and 1 / 0)
attempt("write etc", lambda: open("/etc/wdtest", "w"))
attempt("write usr", lambda: open("/usr/lib/workdir/wdtest", "w"))
attempt("write cgroup", lambda: open("/sys/fs/cgroup/cgroup.procs", "w"))
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("exec", lambda: os.execv("/usr/bin/true", ["true"]))
call("syscall", 425, 8, ctypes.create_string_buffer(120))  # io_uring_setup
def outgrow():
    for fd in os.listdir("/proc/self/fd"):
        if os.readlink("/proc/self/fd/" + fd).endswith("/disk.qcow2"):
            os.pwrite(int(fd), b"x", 1 << 40)
            return
    raise OSError("no disk")
attempt("outgrow the disk", outgrow)
attempt("proc 1", lambda: open("/proc/1/cmdline").read())
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w"))
result["pids"] = len([n for n in os.listdir("/proc") if n.isdigit()])
status = open("/proc/self/status").read()
result["caps"] = " ".join({l.split()[1] for l in status.splitlines() if l.startswith("Cap")})
for name, outcome in result.items():
    sys.stderr.write(f"WDTEST-PROBE {name} = {outcome}\\n")
sys.exit(3)
'''

@pytest.fixture(scope="module")
def from_inside(target):
    """What a program in the place of QEMU could do: attempt -> "done" or why not."""
    PROBE.parent.mkdir(parents=True, exist_ok=True)
    PROBE.write_text(PROBE_TEXT)
    PROBE.chmod(0o755)
    journal = host.Journal()
    try:
        with host.configured(f'[vmm]\nqemu = "{PROBE}"\naccel = "tcg"\n'):
            created = wd("create", *tiny())
            assert created.rc != 0
        eventually(lambda: "WDTEST-PROBE caps = " in journal.text(), 10,
                   "the VMM's stderr is in the journal; wd said: " + created.error)
        return dict(re.findall(r"WDTEST-PROBE (.*?) = (.*)", journal.text()))
    finally:
        PROBE.unlink()


def test_no_attempt_from_the_place_of_qemu_succeeds(from_inside):
    worked = {name for name, outcome in from_inside.items() if outcome == "done"}
    assert not worked, worked


def test_the_place_of_qemu_sees_its_own_processes_only(from_inside):
    assert int(from_inside["pids"]) <= 4
    assert from_inside["caps"] == "0000000000000000"


# ---- the unit as a whole

EXPOSURE = re.compile(r"Overall exposure level for \S+: ([\d.]+) (\w+)")


def exposure(unit):
    shown = run("systemd-analyze", "security", "--no-pager", unit).text
    return float(EXPOSURE.search(shown)[1])


@pytest.mark.target
def test_systemd_analyze_security(one, capsys):
    sandbox, daemon = exposure(one.unit), exposure("workdird.service")
    with capsys.disabled():
        print(f"\nsystemd-analyze security: sandbox unit {sandbox}, workdird.service {daemon} "
              f"({sys.platform}, accel {one.report['accel']})")
    assert sandbox <= 1.0


@pytest.mark.target
@pytest.mark.parametrize("name,value", [
    ("DynamicUser", "yes"), ("NoNewPrivileges", "yes"), ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""), ("ProtectSystem", "strict"), ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"), ("PrivateIPC", "yes"), ("ProtectProc", "invisible"),
    ("ProcSubset", "pid"), ("RestrictAddressFamilies", "AF_UNIX"), ("LimitCORE", "0"),
    ("SystemCallArchitectures", "native"), ("DevicePolicy", "closed"), ("OOMPolicy", "stop"),
    ("LockPersonality", "yes"), ("RestrictSUIDSGID", "yes"), ("RestrictRealtime", "yes"),
    ("ProtectKernelTunables", "yes"), ("ProtectKernelModules", "yes"), ("ProtectKernelLogs", "yes"),
    ("ProtectControlGroups", "yes"), ("ProtectClock", "yes"), ("ProtectHostname", "yes"),
])
def test_unit_property(one, name, value):
    assert host.unit_property(one.unit, name) == value
