"""Golden snapshots: creates that are restored from one, and what happens when it is no good."""

import itertools
import os
import pathlib

import pytest

from support import host
from support.process import eventually, run, wd_ok
from support.sandbox import create, listed

daemon_may_restart = True

# Each test has a shape, and thus a golden, of its own.
SIZES = itertools.count(130)


@pytest.fixture
def shape(target):
    size = f"{next(SIZES)}M"
    yield ["--memory", size]
    for folder in goldens(size):
        run("rm", "-rf", folder)


def goldens(size):
    return list(host.STATE.glob(f"images/base/*/golden/1c-{size}-*"))


def made(shape):
    """Boots one cold, and waits for the golden that this leaves behind: its folder."""
    first = create(*shape)
    assert first.report["boot_path"] == "cold_boot"
    first.remove()
    return eventually(lambda: goldens(shape[1]), 120, "a golden snapshot was made")[0]


@pytest.mark.target
def test_the_second_of_a_shape_is_restored_and_is_itself(shape):
    folder = made(shape)
    one = create(*shape, "--name", "wdtest-one", "--env", "WHO=one")
    two = create(*shape, "--env", "WHO=two")
    try:
        for sandbox in (one, two):
            assert sandbox.report["boot_path"] == "snapshot_restore"
            assert sandbox.inspect()["boot_path"] == "snapshot_restore"
            assert sandbox.inspect()["agent_version"] and sandbox.inspect()["kernel_release"]
            assert sandbox.sh("cat /proc/sys/kernel/hostname /etc/hostname") == "\n".join(
                2 * [sandbox.report["name"] or sandbox.id])
            clock = "date +%s.%N; cat /proc/uptime"
            before = run("date", "+%s.%N").text
            assert abs(float(sandbox.sh(clock).split()[0]) - float(before)) < 10
        assert one.sh("echo $WHO") == "one" and two.sh("echo $WHO") == "two"
        for own in ("cat /etc/machine-id", "head -c 16 /dev/urandom | od -An -tx1",
                    "cat /proc/sys/kernel/random/uuid"):
            assert one.sh(own) != two.sh(own), own
        one.sh("echo one > /root/file; sync")
        assert two.exec("cat", "/root/file").rc != 0
        # Nobody writes what they share.
        assert os.stat(folder / "memory").st_mtime <= os.stat(folder / "snapshot.json").st_mtime
    finally:
        one.remove()
        two.remove()


def test_its_disk_is_whole_whatever_becomes_of_the_golden(shape):
    folder = made(shape)
    sandbox = create(*shape)
    try:
        assert sandbox.report["boot_path"] == "snapshot_restore"
        sandbox.sh("seq 50000 > /root/numbers; rm /etc/motd; mkdir /root/new")
        run("rm", "-rf", folder)
        wd_ok("stop", sandbox.id)
        report = wd_ok("start", "--json", sandbox.id).json
        assert report["boot_path"] == "cold_boot"
        assert sandbox.sh("tail -n1 /root/numbers; ls -d /root/new; ls /etc/motd || echo none"
                          ) == "50000\n/root/new\nnone"
        assert sandbox.sh("cat /etc/hostname") == sandbox.id
    finally:
        sandbox.remove()


def test_memory_is_shared_and_small(shape):
    folder = made(shape)
    on_disk = os.stat(folder / "memory").st_blocks * 512
    assert on_disk < os.stat(folder / "memory").st_size, "free pages are holes"
    sandbox = create(*shape)
    try:
        maps = pathlib.Path(f"/proc/{sandbox.qemu_pid}/maps").read_text()
        line = next(line for line in maps.splitlines() if str(folder / "memory") in line)
        assert line.split()[1] == "rw-p", "mapped privately"
    finally:
        sandbox.remove()


def spoil(file):
    """Other bytes, the same size and the same times."""
    times = os.stat(file)
    with open(file, "r+b") as out:
        for offset in range(0, times.st_size, 1 << 20):
            out.seek(offset)
            out.write(os.urandom(min(64 << 10, times.st_size - offset)))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("damage", ["memory truncated", "state missing", "memory spoilt",
                                    "state spoilt", "info is no JSON"])
def test_a_damaged_one_is_answered_with_a_cold_boot(shape, damage):
    folder = made(shape)
    if damage == "memory truncated":
        os.truncate(folder / "memory", 1 << 20)
    elif damage == "state missing":
        os.unlink(folder / "state")
    elif damage == "info is no JSON":
        (folder / "snapshot.json").write_text("{")
    else:
        spoil(folder / damage.split()[0])
    sandbox = create(*shape)
    try:
        assert sandbox.report["boot_path"] == "cold_boot"
        assert sandbox.usable()
        assert sandbox.sh("cat /etc/hostname") == sandbox.id
    finally:
        sandbox.remove()
    # And it is made anew.
    eventually(lambda: goldens(shape[1]), 120)
    again = create(*shape)
    assert again.report["boot_path"] == "snapshot_restore"
    again.remove()


def test_without_golden_every_create_boots(shape):
    with host.configured("[vmm]\ngolden = false\n"):
        for _ in range(2):
            sandbox = create(*shape)
            assert sandbox.report["boot_path"] == "cold_boot"
            sandbox.remove()
        assert not goldens(shape[1])


def test_a_kill_while_one_is_made_leaves_nothing_of_it(shape):
    before = set(listed())
    create(*shape).remove()
    eventually(lambda: "workdir-golden.service" in host.units("workdir-golden*"))
    host.kill_daemon()
    eventually(lambda: not host.units("workdir-golden*"), 60)
    eventually(lambda: not list(host.STATE.glob("images/.golden-*")) and
               not list(host.STATE.glob("images/.trash-*")), 60)
    assert not goldens(shape[1])
    assert set(listed()) == before
    made(shape)
