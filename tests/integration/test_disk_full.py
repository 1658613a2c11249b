"""The file system below /var/lib/workdir fills up: for this a small one takes its place."""

import os
import pathlib
import shutil
import signal

import pytest

from support import host, leaks
from support.process import eventually, finish, must, run, started, wd, wd_ok
from support.sandbox import create, listed, tiny

daemon_may_restart = True

MIB = 1 << 20
IMAGES = pathlib.Path("/var/tmp/wdtest-images")


@pytest.fixture
def small_disk(no_shared_sandboxes):
    """A function that fills the state directory up; a tmpfs shrinks to what is used."""
    wd_ok("rm", "--all")
    must("systemctl", "stop", "workdird.service")
    images = host.STATE / "images"
    IMAGES.mkdir()
    must("mount", "--bind", images, IMAGES)
    must("mount", "-t", "tmpfs", "-o", "size=12G,mode=700", "wdtest-state", host.STATE)
    images.mkdir(mode=0o700)
    (host.STATE / "sandboxes").mkdir(mode=0o700)
    must("mount", "--bind", IMAGES, images)

    def fill(room):
        usage = os.statvfs(host.STATE)
        used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        must("mount", "-o", f"remount,size={used + room}", host.STATE)

    try:
        with host.configured('[limits]\ndisk_reserve = "0"\n'):
            yield fill
            must("mount", "-o", "remount,size=12G", host.STATE)
            wd_ok("rm", "--all")
            run("systemctl", "stop", "workdird.service")
            for path in (images, host.STATE, IMAGES):
                must("umount", "-l", path)
            IMAGES.rmdir()
    finally:
        if IMAGES.exists():
            for path in (images, host.STATE, IMAGES):
                run("umount", "-l", path)
            IMAGES.rmdir()
        must("systemctl", "start", "workdird.service")


def test_create_on_a_full_disk_is_refused_and_leaves_nothing(small_disk):
    before = leaks.snapshot()
    small_disk(0)
    done = wd("create", *tiny())
    assert done.rc == 8 and "free" in done.error and "limits.disk_reserve" in done.error, str(done)
    assert not leaks.left_over(before)


def test_a_guest_without_space_behind_its_disk_waits_and_then_goes_on(small_disk):
    sandbox = create(*tiny(), "--disk", "3G")
    journal = host.Journal("-u", sandbox.unit)
    small_disk(8 * MIB)
    with sandbox.start("sh", "-c", "head -c 64M /dev/urandom > /root/big && sync && "
                                   "sha256sum < /root/big && echo written") as client:
        eventually(lambda: "no space left" in journal.text(), 120)
        assert listed()[sandbox.id]["state"] == "running"
        small_disk(2048 * MIB)
        done = finish(client, 120)
    assert done.rc == 0 and done.out.endswith(b"written\n"), str(done)
    assert sandbox.sh("sha256sum < /root/big") == done.text.splitlines()[0]


def test_a_sandbox_without_space_behind_its_disk_can_be_removed(small_disk):
    sandbox = create(*tiny(), "--disk", "3G")
    journal = host.Journal("-u", sandbox.unit)
    small_disk(8 * MIB)
    with sandbox.start("sh", "-c", "head -c 200M /dev/urandom > /root/big; sync") as client:
        eventually(lambda: "no space left" in journal.text(), 120)
        small_disk(0)
        wd_ok("rm", sandbox.id)
        done = finish(client)
    assert done.rc == 125 and done.err, str(done)
    assert listed() == {} and not sandbox.directory.exists()


def test_delete_in_every_state_with_the_disk_full(small_disk):
    running, stopped = create(*tiny(), "--disk", "3G"), create(*tiny(), "--disk", "3G")
    wd_ok("stop", stopped.id)
    small_disk(0)
    filler = host.STATE / "filler"
    with pytest.raises(OSError):
        filler.write_bytes(b"x" * MIB)
    filler.unlink(missing_ok=True)
    wd_ok("rm", running.id, stopped.id)
    assert wd("rm", running.id).rc in (0, 3)
    assert listed() == {} and not list((host.STATE / "sandboxes").iterdir())


def test_workdird_starts_and_adopts_with_the_disk_full(small_disk):
    sandbox = create(*tiny(), "--disk", "3G")
    small_disk(0)
    host.kill_daemon()
    assert sandbox.usable()
    wd_ok("rm", sandbox.id)
    eventually(lambda: not sandbox.directory.exists())
    assert shutil.disk_usage(host.STATE).free > 0


def test_a_park_that_fills_the_disk_is_undone_and_the_next_one_is_whole(small_disk):
    sandbox = create(*tiny())
    sandbox.sh("head -c 30M /dev/urandom > /dev/shm/much; echo here > /run/file; sync")
    shim = sandbox.shim_pid
    os.kill(shim, signal.SIGSTOP)  # workdird has seen that there is room; now there is none
    with started("wd", "standby", sandbox.id) as client:
        sandbox.wait_state("parking")
        small_disk(2 * MIB)
        os.kill(shim, signal.SIGCONT)
        done = finish(client)
    assert done.rc != 0 and "No space" in done.error, str(done)
    assert sandbox.state == "running" and sandbox.sh("cat /run/file") == "here"
    small_disk(600 * MIB)
    wd_ok("standby", sandbox.id)
    assert sandbox.sh("cat /run/file") == "here"
    assert sandbox.inspect()["boot_path"] == "wake"
    sandbox.remove()
