"""Second half of the reboot test: what before_reboot.py left is there, stopped, and starts."""

import json
import pathlib
import time

import pytest

from support import host
from support.process import must, run, wd_ok
from support.sandbox import Sandbox, listed

NOTES = pathlib.Path("/var/tmp/wdtest-reboot.json")


@pytest.fixture(scope="module")
def notes(target):
    return json.loads(NOTES.read_text())


@pytest.fixture(scope="module")
def left(notes):
    return [Sandbox(notes["sandboxes"][sandbox]) for sandbox in notes["order"]]


def test_the_machine_has_rebooted(notes):
    assert pathlib.Path("/proc/sys/kernel/random/boot_id").read_text() != notes["boot"]
    assert run("systemctl", "is-active", "workdird.service").text.strip() == "active"


def test_all_are_there_and_stopped_and_nothing_else_is(notes, left):
    assert set(notes["order"]) <= set(listed())
    for sandbox in left:
        seen = sandbox.inspect()
        assert seen["state"] in ("stopped", "failed"), seen
        before = notes["sandboxes"][sandbox.id]
        for key in ("name", "labels", "cpus", "memory_bytes", "disk_bytes", "created_us",
                    "env_names", "owner_uid"):
            assert seen[key] == before[key], key
    assert left[2].inspect()["end_reason"] in ("stopped", "signal", "host-pressure")
    assert not host.units("workdir-sb-*")


def test_they_start_with_disk_identity_and_environment(notes, left):
    for number, sandbox in enumerate(left):
        wd_ok("start", sandbox.id)
        assert sandbox.sh("cat /root/file") == f"sandbox {number}"
    running = left[2]
    assert running.sh("cat /etc/machine-id; printenv KEPT").split() == \
        [notes["machine_ids"][running.id], "environment"]
    assert left[1].sh("nproc") == "2"


def test_the_parked_one_wakes_as_it_was(notes):
    parked = Sandbox(notes["parked"])
    assert parked.state == "standby"
    assert parked.sh("cat /run/file; printenv KEPT; readlink /proc/$(cat /run/pid)/cwd").split("\n") \
        == ["not on the disk", "in memory", "/run/dir"]
    assert parked.inspect()["boot_path"] == "wake"
    assert abs(float(parked.sh("date +%s")) - time.time()) < 60
    parked.remove()


def test_they_can_be_removed(left):
    wd_ok("rm", *[sandbox.id for sandbox in left])
    NOTES.unlink()
    assert not {sandbox.id for sandbox in left} & set(listed())
    assert not must("systemctl", "list-units", "--failed", "--plain", "--no-legend",
                    "workdir*").text
