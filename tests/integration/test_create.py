"""Create: what one gets, what it reports, and what it refuses."""

import concurrent.futures
import contextlib
import json
import os
import signal
import time

import pytest

from support import host, leaks
from support.bus import ROOT, Bus
from support.process import eventually, finish, must, run, started, wd, wd_fails, wd_ok
from support.sandbox import Sandbox, create, listed, tiny

PARTS = ["queue", "assign", "unit", "vmm", "kernel", "agent", "ready"]


@pytest.mark.target
def test_the_main_job(make_sandbox):
    sandbox = make_sandbox()
    done = sandbox.exec_ok("sh", "-c", "echo hello from a microVM; uname -s")
    assert done.out == b"hello from a microVM\nLinux\n"
    wd_ok("rm", sandbox.id)
    assert sandbox.id not in listed()


def test_without_a_terminal_create_prints_the_id_alone():
    created = wd_ok("create", *tiny())
    sandbox = created.text.strip()
    wd_ok("rm", sandbox)
    assert created.out == sandbox.encode() + b"\n"
    assert sandbox.startswith("sb-") and len(sandbox) == 13


@pytest.mark.target
def test_report_has_boot_path_accel_and_every_part_measured(sandbox):
    report = sandbox.report
    assert report["boot_path"] in ("cold_boot", "snapshot_restore")
    assert report["accel"] in ("kvm", "tcg")
    assert report["unit"] == f"workdir-{sandbox.id}.service"
    assert report["image"] == "base" and report["image_version"]
    timings = report["timings_ms"]
    assert sorted(timings) == sorted(PARTS)
    assert all(value >= 0 for value in timings.values()), timings
    assert timings["vmm"] > 0 and timings["kernel"] > 0, timings
    parts = sum(timings[part] for part in PARTS[:-1])
    assert parts <= timings["ready"] + 1, timings
    assert sandbox.inspect()["timings_ms"] == timings


@pytest.mark.target
def test_accel_is_what_the_vmm_runs_with(sandbox):
    argv = open(f"/proc/{sandbox.qemu_pid}/cmdline", "rb").read().decode().split("\0")
    assert argv[argv.index("-accel") + 1].split(",")[0] == sandbox.report["accel"]


def test_guest_is_a_machine_of_its_own(sandbox):
    here = must("cat", "/proc/sys/kernel/random/boot_id").text.strip()
    assert sandbox.sh("cat /proc/sys/kernel/random/boot_id") != here
    assert sandbox.sh("uname -r") == sandbox.inspect()["kernel_release"]
    assert sandbox.sh("cat /proc/1/comm").startswith(("workdir-agent", "init"))


def test_guest_has_only_loopback(sandbox):
    interfaces = json.loads(sandbox.sh("ip -j link"))
    assert [i["ifname"] for i in interfaces] == ["lo"]
    assert "UP" in interfaces[0]["flags"], "loopback must work"


def test_guest_clock_is_the_hosts(sandbox):
    before = time.time()
    guest = float(sandbox.sh("date +%s.%N"))
    after = time.time()
    assert before - 0.5 <= guest <= after + 0.5


def test_two_sandboxes_have_nothing_of_an_identity_in_common(make_sandbox):
    questions = ("cat /etc/machine-id", "hostname", "cat /proc/sys/kernel/random/uuid",
                 "cat /proc/sys/kernel/random/boot_id", "head -c 16 /dev/urandom | base64")
    one, other = make_sandbox(*tiny()), make_sandbox(*tiny())
    for question in questions:
        assert one.sh(question) != other.sh(question), question


def test_env_of_create_reaches_every_process(make_sandbox):
    sandbox = make_sandbox(*tiny(), "--env", "GREETING=hello world", "--env", "EMPTY=")
    assert sandbox.sh('printf "%s|%s|" "$GREETING" "${EMPTY-unset}"') == "hello world||"
    assert sandbox.exec_ok("printenv", "GREETING", options=["--env", "GREETING=mine"]).out == \
        b"mine\n", "exec's own wins"


def test_env_of_more_than_one_message_arrives_whole(make_sandbox):
    variables = [f"V{n}={n:02d}" + "x" * 12000 for n in range(10)]
    sandbox = make_sandbox(*tiny(), *(word for v in variables for word in ("--env", v)))
    assert sandbox.exec_ok("sh", "-c", "env | grep -c ^V; printenv V9").text.split("\n")[:2] == \
        ["10", variables[9].removeprefix("V9=")]


def test_an_env_that_cannot_be_passed_on_is_refused_at_once(target):
    begin = time.monotonic()
    error = wd_fails("create", *tiny(), "--env", "X=" + "é" * 50000, rc=7).error
    assert "environment" in error
    assert time.monotonic() - begin < 60, "that is a boot that waited for its deadline"


def test_name_label_and_id_find_it(make_sandbox):
    sandbox = make_sandbox(*tiny(), "--name", "wdtest-name", "--label", "team=blue",
                           "--label", "a/b=")
    entry = listed()[sandbox.id]
    assert entry["name"] == "wdtest-name"
    assert entry["labels"] == {"team": "blue", "a/b": ""}
    assert wd_ok("exec", "wdtest-name", "--", "echo", "x").out == b"x\n"
    assert set(listed("--label", "team=blue")) == {sandbox.id}
    assert set(listed("--label", "team=red")) == set()
    taken = wd_fails("create", *tiny(), "--name", "wdtest-name", rc=4)
    assert "wdtest-name" in taken.error
    wd_fails("inspect", "wdtest-nam", rc=3)
    wd_fails("inspect", sandbox.id[:-1], rc=3)


def test_unknown_image_is_named(target):
    assert "no-such-image" in wd_fails("create", "--image", "no-such-image", rc=3).error


def test_parallel_creates_all_succeed(target):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda _: create(*tiny()), range(4)))
        try:
            assert len({sandbox.id for sandbox in made}) == 4
            assert all(pool.map(lambda sandbox: sandbox.usable(), made))
        finally:
            removed = run("wd", "rm", *[sandbox.id for sandbox in made])
    assert removed.rc == 0, str(removed)


def test_create_and_delete_20_times_always_goes_the_same_way(target):
    create(*tiny()).remove()
    eventually(lambda: list(host.STATE.glob("images/base/*/golden/1c-128M-*")), 120)
    for _ in range(20):
        sandbox = create(*tiny())
        assert sandbox.report["boot_path"] == "snapshot_restore"
        wd_ok("rm", sandbox.id)
        assert not sandbox.directory.exists()
        assert host.unit_property(sandbox.unit, "LoadState") == "not-found"


# ---- the client goes away

@contextlib.contextmanager
def held_create(part):
    """A `wd create` that is held up in this part, so that it cannot end before the test acts:
    its client and the sandbox. What is held stops at SIGSTOP and dies of SIGKILL all the same."""
    known = set(host.units("workdir-sb-*.service"))
    held = None
    # Of a shape that nothing else has: none of these creates succeeds, so all of them boot.
    with started("wd", "create", "--memory", "129M") as client:
        try:
            unit = eventually(lambda: set(host.units("workdir-sb-*.service")) - known).pop()
            name = unit.removeprefix("workdir-").removesuffix(".service")
            sandbox = Sandbox({"id": name, "unit": unit})
            console = sandbox.directory / "console.log"
            if part == "unit":
                held = eventually(lambda: sandbox.shim_pid, what="the shim has started")
            else:
                held = eventually(lambda: sandbox.qemu_pid, what="the VMM has started")
            if part == "kernel":
                eventually(lambda: console.exists() and console.stat().st_size,
                           what="the guest kernel says something")
            os.kill(held, signal.SIGSTOP)
            yield client, sandbox
        finally:
            if held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(held, signal.SIGCONT)


@pytest.mark.parametrize("part", ["unit", "vmm", "kernel"])
def test_killed_client_leaves_nothing(target, part):
    before = leaks.snapshot()
    with held_create(part) as (client, _):
        client.kill()
        client.wait()
        eventually(lambda: not leaks.left_over(before), 60, "nothing left of the create")


def test_client_that_leaves_before_anything_began_leaves_nothing(target):
    before = leaks.snapshot()
    for _ in range(10):
        with Bus() as bus:
            bus.send(ROOT, "Manager", "Create", "a{sv}", {"memory": ("t", 128 << 20)})
    time.sleep(1)  # the calls are on their way; when the last is carried out nobody can know
    eventually(lambda: not leaks.left_over(before), 60, "nothing left of the creates")


def test_interrupted_client_leaves_nothing_and_says_so(target):
    before = leaks.snapshot()
    with held_create("vmm") as (client, _):
        client.send_signal(signal.SIGINT)
        done = finish(client)
        assert done.rc in (13, 130, -signal.SIGINT), str(done)
        assert not done.out
        eventually(lambda: not leaks.left_over(before), 60, "nothing left of the create")


def test_sandbox_deleted_while_it_is_created(target):
    before = leaks.snapshot()
    with held_create("kernel") as (client, sandbox):
        wd_ok("rm", sandbox.id)
        done = finish(client)
        assert done.rc != 0 and done.err, str(done)
        eventually(lambda: not leaks.left_over(before), 30)


# ---- more than there is

class TestLimits:
    daemon_may_restart = True

    @pytest.fixture(scope="class", autouse=True)
    def generous(self, target):
        with host.configured('[limits]\nmax_memory = "100T"\nmax_disk = "100T"\nmax_cpus = 4\n'):
            yield

    def test_more_memory_than_the_host_has(self):
        error = wd_fails("create", "--memory", "90T", rc=7).error
        assert "90T" in error and "limits.memory_total" in error and "available" in error

    def test_more_disk_than_is_free(self):
        error = wd_fails("create", "--disk", "90T", rc=8).error
        assert "90T" in error and "free" in error and "limits.disk_reserve" in error

    @pytest.mark.parametrize("option,asked,setting,limit", [
        ("--memory", "200T", "limits.max_memory", "100T"),
        ("--disk", "200T", "limits.max_disk", "100T"),
        ("--cpus", "5", "limits.max_cpus", "4"),
    ])
    def test_past_a_cap(self, option, asked, setting, limit):
        error = wd_fails("create", option, asked, rc=7).error
        assert asked in error and setting in error and limit in error

    @pytest.mark.parametrize("option,value", [
        ("--memory", "1M"), ("--memory", "0"), ("--memory", "lots"), ("--memory", "-1"),
        ("--memory", "134217729"), ("--disk", "0"), ("--disk", "8X"), ("--cpus", "0"),
        ("--cpus", "-1"), ("--cpus", "many"), ("--cpus", "99999999999999999999"),
        ("--memory", "99999999999T"),
    ])
    def test_nonsense_sizes(self, option, value):
        wd_fails("create", f"{option}={value}", rc=2)

    def test_a_disk_smaller_than_the_image(self):
        error = wd_fails("create", "--disk", "64M", rc=2).error
        assert "64M" in error and "base" in error


def test_sandbox_counts_are_limits(no_shared_sandboxes):
    count = len(listed())
    with host.configured(f"[limits]\nmax_sandboxes = {count + 1}\n"):
        one = create(*tiny())
        error = wd_fails("create", *tiny(), rc=7).error
        wd_ok("rm", one.id)
        assert "limits.max_sandboxes " in error and str(count + 1) in error
        create(*tiny()).remove()


# ---- what is missing on the host

def test_guest_kernel_missing(target):
    with host.configured('[guest]\nkernel = "/usr/lib/workdir/guest/no-such-kernel"\n'):
        error = wd_fails("create", *tiny()).error
    assert "/usr/lib/workdir/guest/no-such-kernel" in error
    assert "workdir-guest" in error or "guest.kernel" in error, "names no remedy: " + error


def test_vmm_missing(target):
    with host.configured('[vmm]\nqemu = "/usr/bin/no-such-qemu"\naccel = "tcg"\n'):
        error = wd_fails("create", *tiny()).error
    assert "/usr/bin/no-such-qemu" in error
    assert "vmm.qemu" in error or "qemu-system-x86" in error, "names no remedy: " + error


def test_vmm_that_exits_at_once(target):
    with host.configured('[vmm]\nqemu = "/bin/false"\naccel = "tcg"\n'):
        error = wd_fails("create", *tiny(), rc=10).error
    assert "status 1" in error or "exit" in error


def test_kvm_unreadable(target):
    present = os.path.exists("/dev/kvm")
    mode = os.stat("/dev/kvm").st_mode if present else 0
    if present:
        os.rename("/dev/kvm", "/dev/kvm.away")
    try:
        with host.configured('[vmm]\naccel = "kvm"\n'):
            error = wd_fails("create", *tiny()).error
            assert "/dev/kvm" in error
            assert "vmm.accel" in error or "doctor" in error, "names no remedy: " + error
            checks = wd("doctor")
            assert checks.rc != 0 and "/dev/kvm" in checks.text + checks.error
    finally:
        if present:
            os.rename("/dev/kvm.away", "/dev/kvm")
            assert os.stat("/dev/kvm").st_mode == mode


daemon_may_restart = True
