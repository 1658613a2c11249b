"""The control plane dies; nobody in a sandbox notices, and nothing is lost or left."""

import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from support import host, leaks
from support.process import (IN_TESTVM, eventually, finish, must, read_until, run, started, wd, wd_fails,
                             wd_ok)
from support.sandbox import create, listed, tiny

daemon_may_restart = True

FLEET = 5 if IN_TESTVM else 10
WAITS = 'echo ready; while [ ! -e "/tmp/go$1" ]; do sleep 0.1; done; seq 20000; exit "$1"'


@pytest.fixture(scope="module")
def fleet(no_leaks):
    made = []
    try:
        for number in range(FLEET):
            made.append(create(*tiny(), "--label", f"fleet={number}"))
        yield made
    finally:
        for sandbox in made:
            sandbox.remove()


def running_units():
    return {unit: host.unit_property(unit, "InvocationID")
            for unit in host.units("workdir-sb-*.service")}


@pytest.mark.target
def test_killed_workdird_loses_no_exec_and_no_sandbox(fleet):
    before, units = listed(), running_units()
    clients = [subprocess.Popen(["wd", "exec", sandbox.id, "--", "sh", "-c", WAITS, "sh", str(n)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
               for n, sandbox in enumerate(fleet[:5])]
    try:
        for client in clients:
            read_until(client.stdout, b"ready")
        host.kill_daemon()
        after = listed()
        assert {i: e["state"] for i, e in after.items()} == {i: "running" for i in before}
        assert running_units() == units, "units were restarted, lost or added"
        for number, sandbox in enumerate(fleet):
            sandbox.sh(f"touch /tmp/go{number}")
        expected = "".join(f"{n}\n" for n in range(1, 20001)).encode()
        for number, client in enumerate(clients):
            done = finish(client)
            assert (done.rc, done.out.lstrip(b"\n"), done.err) == (number, expected, b"")
    finally:
        for client in clients:
            client.kill()
            client.communicate()


@pytest.mark.target
def test_all_are_reachable_after_three_kills_in_a_row(fleet):
    units = running_units()
    for _ in range(3):
        host.kill_daemon()
    assert all(sandbox.usable() for sandbox in fleet)
    assert running_units() == units
    assert fleet[0].inspect()["timings_ms"] == fleet[0].report["timings_ms"]


@pytest.mark.target
def test_stopped_workdird_does_not_stop_sandboxes(fleet):
    sandbox = fleet[0]
    with sandbox.start("sh", "-c", WAITS, "sh", "9") as client:
        read_until(client.stdout, b"ready")
        must("systemctl", "stop", "workdird.service")
        try:
            assert all(host.unit_property(s.unit, "ActiveState") == "active" for s in fleet)
            assert client.poll() is None
        finally:
            must("systemctl", "start", "workdird.service")
        sandbox.sh("touch /tmp/go9")
        done = finish(client)
    assert done.rc == 9 and done.out.endswith(b"20000\n"), str(done)


def test_output_that_flows_while_workdird_dies_is_whole(fleet):
    with fleet[0].start("sh", "-c", "echo ready; seq 2000000") as client:
        head = read_until(client.stdout, b"ready\n")
        host.kill_daemon()
        done = finish(client)
    lines = (head + done.out).split(b"ready\n", 1)[1].split()
    assert done.rc == 0 and lines == [b"%d" % n for n in range(1, 2000001)]


def test_stop_and_rm_work_on_an_adopted_sandbox(fleet):
    sandbox = create(*tiny())
    host.kill_daemon()
    wd_ok("stop", sandbox.id)
    assert sandbox.inspect()["end_reason"] == "stopped"
    wd_ok("start", sandbox.id)
    host.kill_daemon()
    wd_ok("rm", sandbox.id)
    assert not sandbox.directory.exists()


@pytest.mark.parametrize("how,reason", [("stop", "stopped"), ("kill", "signal")])
def test_an_end_that_nobody_saw_is_recorded_at_start(make_sandbox, how, reason):
    sandbox = make_sandbox(*tiny())
    must("systemctl", "stop", "workdird.service")
    try:
        if how == "stop":
            must("systemctl", "stop", sandbox.unit)
        else:
            os.kill(sandbox.shim_pid, signal.SIGKILL)
            eventually(lambda: host.unit_property(sandbox.unit, "ActiveState") != "active")
    finally:
        must("systemctl", "start", "workdird.service")
    sandbox.wait_state("stopped", "failed")
    assert sandbox.inspect()["end_reason"] == reason
    wd_ok("start", sandbox.id)
    assert sandbox.usable()


def test_a_unit_and_a_directory_of_nobody_are_removed(target):
    nobody = "sb-aaaaaaaaaa"
    must("systemd-run", "--quiet", f"--unit=workdir-{nobody}", "--slice=workdir.slice",
         "sleep", "infinity")
    (host.STATE / "sandboxes" / nobody).mkdir()
    (host.STATE / "sandboxes" / nobody / "disk.qcow2").write_bytes(b"x" * 100)
    host.restart_daemon()
    eventually(lambda: f"workdir-{nobody}.service" not in host.units("workdir-*"))
    eventually(lambda: not (host.STATE / "sandboxes" / nobody).exists())


def test_500_stale_directories_do_not_hold_up_the_start(target):
    must("systemctl", "stop", "workdird.service")
    for number in range(500):
        name = "sb-" + "".join("abcdefghij"[int(digit)] for digit in f"{number:010}")
        directory = host.STATE / "sandboxes" / name
        directory.mkdir()
        (directory / "disk.qcow2").write_bytes(b"x" * 10000)
    must("systemctl", "start", "workdird.service", timeout=30)
    assert wd("ls", timeout=30).rc == 0
    eventually(lambda: not list((host.STATE / "sandboxes").glob("sb-aaaaaaa*")), 60)


@pytest.mark.parametrize("moment", ["unit", "running"])
def test_workdird_dies_during_a_create(target, moment):
    before = leaks.snapshot()
    known = set(host.units("workdir-sb-*.service"))
    with started("wd", "create", *tiny()) as client:
        new = eventually(lambda: set(host.units("workdir-sb-*.service")) - known).pop()
        if moment == "running":
            eventually(lambda: host.unit_property(new, "MainPID") != "0")
        host.kill_daemon()
        done = finish(client)
    assert done.rc != 0 and done.err, "its caller must hear of it: " + str(done)
    eventually(lambda: not leaks.left_over(before), 60, "nothing left of the create")


def test_workdird_dies_during_a_rm(target):
    sandbox = create(*tiny())
    with started("wd", "rm", sandbox.id) as client:
        eventually(lambda: client.poll() is not None or
                   host.unit_property(sandbox.unit, "ActiveState") != "active")
        host.kill_daemon()
        finish(client)
    wd("rm", sandbox.id)
    eventually(lambda: sandbox.id not in listed() and not sandbox.directory.exists())


def test_a_damaged_database_is_refused_and_put_aside_by_nobody(fleet):
    """A database that cannot be read must not be taken for an empty one: that would end all."""
    database = host.STATE / "state.db"
    journal, units = host.Journal("-u", "workdird.service"), running_units()
    must("systemctl", "stop", "workdird.service")
    away = pathlib.Path("/var/tmp/wdtest-state")
    away.mkdir()
    for file in host.STATE.glob("state.db*"):
        shutil.move(str(file), away)
    database.write_bytes(b"this is not a database, " * 1000)
    try:
        assert run("systemctl", "start", "workdird.service").rc != 0
        assert "state.db" in journal.text()
    finally:
        run("systemctl", "stop", "workdird.service")
        for file in host.STATE.glob("state.db*"):
            file.unlink()
        for file in away.iterdir():
            shutil.move(str(file), host.STATE)
        away.rmdir()
        run("systemctl", "reset-failed", "workdird.service")
        must("systemctl", "start", "workdird.service")
    assert running_units() == units
    assert all(sandbox.usable() for sandbox in fleet[:3])


def test_a_hung_workdird_is_restarted_by_its_watchdog(fleet):
    properties = host.unit_properties("workdird.service", "WatchdogUSec", "Restart")
    assert properties["WatchdogUSec"] not in ("0", "infinity")
    assert properties["Restart"] == "always"
    old = host.daemon_pid()
    os.kill(old, signal.SIGSTOP)
    eventually(lambda: host.daemon_pid() not in (0, old) and host.daemon_answers(), 180)
    assert all(sandbox.usable() for sandbox in fleet)


def test_nothing_can_be_made_while_workdird_is_masked(target):
    must("systemctl", "mask", "--runtime", "--now", "workdird.service")
    try:
        assert "workdird" in wd_fails("create", timeout=60).error
    finally:
        must("systemctl", "unmask", "--runtime", "workdird.service")
        must("systemctl", "start", "workdird.service")


def test_stop_of_one_that_was_adopted_while_it_started(make_sandbox):
    sandbox = make_sandbox(*tiny())
    wd_ok("stop", sandbox.id)
    with started("wd", "start", sandbox.id) as client:
        eventually(lambda: host.unit_property(sandbox.unit, "ActiveState") in
                   ("activating", "active"), 20)
        host.kill_daemon()
        pid = host.daemon_pid()
        assert wd("stop", sandbox.id).rc == 0
        assert sandbox.state == "stopped" and host.daemon_pid() == pid
        finish(client)
    wd_ok("start", sandbox.id)
    assert sandbox.usable()
