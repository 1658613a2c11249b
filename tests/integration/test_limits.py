"""Limits of a sandbox, by their effect."""

import json
import pathlib
import shutil
import sys

import pytest

from support import host
from support.process import eventually, must, run, wd_ok
from support.sandbox import tiny

MIB = 1 << 20
GIB = 1 << 30

# Joins the unit's cgroup and forks until it is refused; prints how often it was not.
FORK_UP_TO = """
import os, signal, sys
for file in sys.argv[2:]:
    open(file, "w").write(str(os.getpid()))
children = []
try:
    for _ in range(int(sys.argv[1])):
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
    print("never refused")
except BlockingIOError:
    print(len(children))
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def memory_in_use(unit):
    files = host.cgroup_files(unit, "memory.usage_in_bytes") + \
        host.cgroup_files(unit, "memory.current")
    return max(int(file.read_text()) for file in files)


@pytest.mark.target
def test_a_vmm_past_its_memory_max_ends_with_oom_limit_and_peak(make_sandbox):
    sandbox = make_sandbox("--memory", "512M")
    limit = (memory_in_use(sandbox.unit) // MIB + 64) * MIB
    must("systemctl", "set-property", "--runtime", sandbox.unit, f"MemoryMax={limit}")
    try:
        done = sandbox.exec("python3", "-c", "print(len(b'x' * (400 << 20)))", timeout=180)
        assert done.rc == 125 and not done.out, str(done)
        sandbox.wait_state("failed", "stopped")
        seen = sandbox.inspect()
        assert seen["end_reason"] == "oom", seen
        assert seen["end_limit"] == limit, seen
        assert limit * 0.9 <= seen["end_peak"] <= limit * 1.1, seen
    finally:
        # What set-property wrote outlives the unit.
        shutil.rmtree(f"/run/systemd/system.control/{sandbox.unit}.d", ignore_errors=True)
        must("systemctl", "daemon-reload")
    wd_ok("start", sandbox.id)
    assert sandbox.usable()


@pytest.mark.target
def test_a_guest_may_use_all_of_its_memory(make_sandbox):
    sandbox = make_sandbox("--memory", "512M")
    assert sandbox.sh("python3 -c 'print(len(b\"x\" * (330 << 20)))'") == str(330 * MIB)
    too_much = sandbox.exec("python3", "-c", "print(len(b'x' * (700 << 20)))")
    assert too_much.rc not in (0, 125), "the guest's own kernel refuses: " + str(too_much)
    assert sandbox.usable()


@pytest.mark.target
def test_guest_memory_is_what_was_asked(make_sandbox, sandbox):
    for one, asked in ((make_sandbox("--memory", "300M"), 300), (sandbox, 512)):
        total = int(one.sh("awk '/^MemTotal/ {print $2}' /proc/meminfo")) // 1024
        assert asked * 0.8 < total <= asked
        assert one.inspect()["memory_bytes"] == asked * MIB
        assert int(host.unit_property(one.unit, "MemoryMax")) >= asked * MIB


@pytest.mark.target
@pytest.mark.parametrize("cpus", [1, 2])
def test_cpus_are_vcpus_and_a_quota(make_sandbox, cpus):
    sandbox = make_sandbox(*tiny(), "--cpus", cpus)
    assert sandbox.sh("nproc") == str(cpus)
    assert host.unit_property(sandbox.unit, "CPUQuotaPerSecUSec") == f"{cpus}s"
    v1 = host.cgroup_files(sandbox.unit, "cpu.cfs_quota_us")
    v2 = host.cgroup_files(sandbox.unit, "cpu.max")
    if v1:
        period = int((v1[0].parent / "cpu.cfs_period_us").read_text())
        assert int(v1[0].read_text()) == cpus * period
    else:
        quota, period = v2[0].read_text().split()
        assert int(quota) == cpus * int(period)


@pytest.mark.target
def test_tasks_max_holds(make_sandbox):
    sandbox = make_sandbox(*tiny())
    limit = int(host.unit_property(sandbox.unit, "TasksMax"))
    assert limit <= 1024
    groups = [file.parent / "cgroup.procs" for file in host.cgroup_files(sandbox.unit, "pids.max")]
    assert groups
    forked = must(sys.executable, "-c", FORK_UP_TO, 2 * limit, *groups).text.strip()
    assert forked != "never refused" and int(forked) < limit
    assert sandbox.usable()


@pytest.mark.target
def test_disk_is_the_size_the_guest_sees(make_sandbox):
    sandbox = make_sandbox(*tiny(), "--disk", "3G")
    assert int(sandbox.sh("cat /sys/block/vda/size")) * 512 == 3 * GIB
    size = int(sandbox.sh("df -B1 --output=size / | tail -n1"))
    assert 0.85 * 3 * GIB < size <= 3 * GIB, "the root file system was not grown to the disk"
    info = json.loads(must("qemu-img", "info", "--force-share", "--output=json",
                           sandbox.directory / "disk.qcow2").out)
    assert info["virtual-size"] == 3 * GIB


@pytest.mark.target
def test_a_guest_cannot_write_past_its_disk(make_sandbox):
    sandbox = make_sandbox(*tiny(), "--disk", "3G")
    past = sandbox.exec("dd", "if=/dev/zero", "of=/dev/vda", "bs=1M", "seek=3072", "count=1")
    assert past.rc == 1 and "space" in past.error, str(past)
    full = sandbox.exec("fallocate", "-l", "4G", "/root/big")
    assert full.rc == 1 and "space" in full.error, str(full)
    on_host = (sandbox.directory / "disk.qcow2").stat().st_blocks * 512
    assert on_host < 512 * MIB


def test_a_disk_that_is_grown_is_still_writable_to_its_end(make_sandbox):
    sandbox = make_sandbox(*tiny(), "--disk", "12G")
    sandbox.sh("fallocate -l 9G /root/big && rm /root/big")


def test_a_full_host_disk_is_an_error_before_the_start(target):
    with host.configured('[limits]\ndisk_reserve = "900T"\n'):
        done = run("wd", "create", *tiny())
    assert done.rc == 8 and "limits.disk_reserve" in done.error and "900T" in done.error, str(done)


def test_oom_of_the_guests_own_kernel_ends_only_the_process(sandbox):
    before = sandbox.inspect()["started_us"]
    done = sandbox.exec("sh", "-c", "python3 -c 'x = bytearray(2 << 30)'; echo survived")
    assert done.out == b"survived\n"
    assert sandbox.inspect()["started_us"] == before


def test_a_fork_bomb_stays_in_the_guest(make_sandbox):
    sandbox = make_sandbox(*tiny())
    sandbox.exec("sh", "-c", "ulimit -u 200; f() { f | f & }; f", options=["--timeout", "5"],
                 timeout=120)
    eventually(sandbox.usable, 60)
    tasks = [int(file.read_text()) for file in host.cgroup_files(sandbox.unit, "pids.current")]
    assert max(tasks) < int(host.unit_property(sandbox.unit, "TasksMax"))


def test_memory_of_live_sandboxes_adds_up_to_the_total(no_shared_sandboxes, make_sandbox):
    with host.configured('[limits]\nmemory_total = "1G"\n'):
        one = make_sandbox("--memory", "512M")
        refused = run("wd", "create", "--memory", "512M")
        assert refused.rc == 7 and "limits.memory_total" in refused.error, str(refused)
        wd_ok("stop", one.id)
        other = make_sandbox("--memory", "512M")
        again = run("wd", "start", one.id)
        assert again.rc == 7 and "limits.memory_total" in again.error, str(again)
        other.remove()
        wd_ok("start", one.id)


def test_files_of_a_sandbox_are_private(sandbox):
    for path in [host.STATE, sandbox.directory, *sandbox.directory.iterdir()]:
        assert pathlib.Path(path).stat().st_mode & 0o077 == 0, path


daemon_may_restart = True
