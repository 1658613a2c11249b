"""Standby: parked by itself or at once, woken by a call, and whole whatever happens meanwhile."""

import concurrent.futures
import os
import pathlib
import signal
import time

import pytest

from support import host
from support.process import eventually, finish, read_until, run, wd, wd_fails, wd_ok
from support.sandbox import create, temporary, tiny

daemon_may_restart = True

# A process that holds state in memory alone: it writes its own number of steps, twenty a second.
COUNTER = ("(n=0; while :; do n=$((n+1)); echo $n > /run/counter.new; "
           "mv /run/counter.new /run/counter; sleep 0.05; done) >/dev/null 2>&1 </dev/null & "
           "echo $! > /run/counter.pid; while [ ! -e /run/counter ]; do sleep 0.02; done")


@pytest.fixture
def sandbox(no_leaks):
    with temporary(*tiny(), "--env", "KEPT=environment") as made:
        yield made


def counter(sandbox):
    return int(sandbox.sh("cat /run/counter"))


def park(sandbox):
    wd_ok("standby", sandbox.id)
    assert sandbox.state == "standby"
    assert host.unit_property(sandbox.unit, "LoadState") == "not-found"


@pytest.mark.target
def test_parked_it_takes_nothing_and_a_call_finds_it_as_it_was(sandbox):
    sandbox.sh(COUNTER + "; exec 3>/root/open; echo before > /root/file; hostname > /run/name; "
                         "cat /etc/machine-id > /run/id; mount -t tmpfs none /mnt; echo m > /mnt/m")
    pid = sandbox.sh("cat /run/counter.pid")
    last = 0
    for turn in range(3):
        park(sandbox)
        assert not [p for p in host.processes("workdir-shim", "qemu-system-x86_64")
                    if sandbox.id in pathlib.Path(f"/proc/{p}/cgroup").read_text()]
        before = time.time()
        assert sandbox.sh("cat /mnt/m /root/file; printenv KEPT; hostname; cat /etc/machine-id") == \
            "\n".join(["m", "before", "environment", sandbox.sh("cat /run/name"),
                       sandbox.sh("cat /run/id")])
        assert sandbox.sh("kill -0 $(cat /run/counter.pid) && cat /run/counter.pid") == pid
        now = counter(sandbox)
        assert now >= last, f"turn {turn}"
        last = now
        assert float(sandbox.sh("date +%s.%N")) >= before - 0.05, "the clock was set"
        seen = sandbox.inspect()
        assert seen["boot_path"] == "wake" and seen["state"] == "running"
        assert seen["timings_ms"]["ready"] > 0
    eventually(lambda: counter(sandbox) > last, 30, "the process goes on")


def test_random_numbers_differ_after_a_wake_from_the_same_memory(sandbox):
    seen = set()
    saved = sandbox.directory / "standby"
    for _ in range(2):
        park(sandbox)
        if not seen:
            run("cp", "-a", "--sparse=always", str(saved), "/var/tmp/wdtest-standby")
        else:
            run("rm", "-rf", str(saved))
            run("cp", "-a", "--sparse=always", "/var/tmp/wdtest-standby", str(saved))
        try:
            value = sandbox.sh("head -c 16 /dev/urandom | od -An -tx1")
        finally:
            if seen:
                run("rm", "-rf", "/var/tmp/wdtest-standby")
        assert value not in seen
        seen.add(value)


def test_left_alone_it_parks_itself_and_a_session_keeps_it_up(no_leaks):
    with temporary(*tiny(), "--idle-timeout", "3s") as sandbox:
        assert sandbox.inspect()["idle_timeout_ms"] == 3000
        with sandbox.start("sh", "-c", "echo ready; sleep 6; echo done") as client:
            read_until(client.stdout, b"ready")
            done = finish(client)
        assert done.rc == 0 and b"done" in done.out and sandbox.state == "running"
        sandbox.wait_state("standby")
        assert sandbox.usable()
        sandbox.wait_state("standby")
        # Looking at it does not wake it.
        assert wd_ok("ls", "--all", "--json").json and sandbox.inspect()["state"] == "standby"


def test_with_an_idle_timeout_of_0_it_never_does(no_leaks):
    with host.configured('[defaults]\nidle_timeout = "1s"\n'):
        with temporary(*tiny(), "--idle-timeout", "0") as never, \
                temporary(*tiny(), "--idle-timeout", "1s") as soon:
            soon.wait_state("standby")
            assert never.state == "running" and never.inspect()["idle_timeout_ms"] == 0


def test_calls_at_once_share_one_wake(sandbox):
    park(sandbox)
    journal = host.Journal("-u", "workdird.service")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        done = list(pool.map(lambda n: sandbox.exec("echo", str(n)), range(12)))
    assert [d.text.strip() for d in done] == [str(n) for n in range(12)], [str(d) for d in done]
    assert sandbox.inspect()["boot_path"] == "wake"
    assert journal.text().count("(wake, ") == 1


def test_calls_while_it_is_being_parked_wake_it_again(sandbox):
    sandbox.sh("head -c 40M /dev/urandom > /dev/shm/much")
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            parked = pool.submit(wd, "standby", sandbox.id)
            time.sleep(0.05)  # any moment of it is a good one
            assert sandbox.exec("echo", "alive").out == b"alive\n"
            assert parked.result().rc in (0, 5), str(parked.result())


def test_with_a_session_open_it_is_refused_and_runs_on(sandbox):
    with sandbox.start("sh", "-c", "echo ready; read line; echo $line", stdin=-1) as client:
        read_until(client.stdout, b"ready")
        error = wd_fails("standby", sandbox.id).error
        assert "1 session" in error and sandbox.state == "running"
        client.stdin.write(b"on\n")
        client.stdin.flush()
        assert b"on" in finish(client).out
    park(sandbox)


def test_without_room_on_the_disk_it_is_refused_and_runs_on(sandbox):
    with host.configured('[limits]\ndisk_reserve = "900T"\n'):
        error = wd_fails("standby", sandbox.id, rc=8).error
        assert "disk_reserve" in error
        assert sandbox.state == "running" and sandbox.usable()
    park(sandbox)


def test_start_joins_a_wake_and_a_call_joins_a_start(sandbox):
    park(sandbox)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        started = pool.submit(wd, "start", sandbox.id)
        eventually(lambda: sandbox.state != "standby")
        called = pool.submit(sandbox.exec, "echo", "called")
        again = pool.submit(wd, "start", sandbox.id)
        assert called.result().out == b"called\n"
        assert started.result().rc == 0, str(started.result())
        assert again.result().rc in (0, 5), str(again.result())  # the last: it ran already


@pytest.mark.target
def test_it_outlives_workdird(sandbox):
    sandbox.sh(COUNTER)
    park(sandbox)
    host.kill_daemon()
    assert sandbox.state == "standby"
    before = counter(sandbox)
    assert sandbox.inspect()["boot_path"] == "wake"
    eventually(lambda: counter(sandbox) > before)


def test_stop_gives_the_memory_up_and_keeps_the_disk(sandbox):
    sandbox.sh("echo kept > /root/file; echo lost > /run/file")
    park(sandbox)
    wd_ok("stop", sandbox.id)
    assert sandbox.state == "stopped" and not (sandbox.directory / "standby").exists()
    wd_ok("start", sandbox.id)
    assert sandbox.sh("cat /root/file; cat /run/file || echo none") == "kept\nnone"


def test_start_wakes_it_and_rm_removes_it(sandbox):
    sandbox.sh("echo here > /run/file")
    park(sandbox)
    assert wd_ok("start", "--json", sandbox.id).json["boot_path"] == "wake"
    assert sandbox.sh("cat /run/file") == "here"
    park(sandbox)
    wd_ok("rm", sandbox.id)
    assert not sandbox.directory.exists()


def test_a_wake_that_finds_no_room_says_so_and_keeps_it(sandbox):
    sandbox.sh("echo here > /run/file")
    park(sandbox)
    with host.configured('[limits]\nmemory_total = "200M"\n[defaults]\nmemory = "128M"\n'):
        error = wd_fails("exec", sandbox.id, "--", "true", rc=125).error
        assert "memory_total" in error and sandbox.state == "standby"
    assert sandbox.sh("cat /run/file") == "here"


@pytest.mark.parametrize("damage", ["memory truncated", "state missing", "info is no JSON",
                                    "another stamp", "disk written to"])
def test_what_does_not_fit_boots_anew_with_its_disk(sandbox, damage):
    sandbox.sh("echo kept > /root/file; echo lost > /run/file; sync")
    park(sandbox)
    folder = sandbox.directory / "standby"
    if damage == "memory truncated":
        os.truncate(folder / "memory", 1 << 20)
    elif damage == "state missing":
        os.unlink(folder / "state")
    elif damage == "info is no JSON":
        (folder / "snapshot.json").write_text("{")
    elif damage == "another stamp":
        text = (folder / "snapshot.json").read_text()
        (folder / "snapshot.json").write_text(text.replace("qemu", "qemv", 1))
    else:
        os.utime(sandbox.directory / "disk.qcow2")
    assert sandbox.sh("cat /root/file; cat /run/file || echo none") == "kept\nnone"
    assert sandbox.inspect()["boot_path"] == "cold_boot" and not folder.exists()


def test_a_state_that_cannot_be_loaded_is_an_error_and_nothing_hangs(sandbox):
    sandbox.sh("echo kept > /root/file; sync")
    park(sandbox)
    state = sandbox.directory / "standby" / "state"
    times = os.stat(state)
    state.write_bytes(os.urandom(times.st_size))
    os.utime(state, ns=(times.st_atime_ns, times.st_mtime_ns))
    error = wd_fails("exec", sandbox.id, "--", "true", rc=125).error
    assert "standby" in error and sandbox.state == "standby"
    wd_ok("stop", sandbox.id)
    wd_ok("start", sandbox.id)
    assert sandbox.sh("cat /root/file") == "kept"


@pytest.mark.parametrize("victim", ["shim", "vmm", "workdird"])
@pytest.mark.parametrize("delay", [0, 0.05, 0.15, 0.3])
def test_a_kill_in_the_middle_of_a_park_loses_no_disk(sandbox, victim, delay):
    sandbox.sh("echo kept > /root/file; sync; head -c 40M /dev/urandom > /dev/shm/much")
    pids = {"shim": sandbox.shim_pid, "vmm": sandbox.qemu_pid, "workdird": host.daemon_pid()}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        parked = pool.submit(wd, "standby", sandbox.id)
        time.sleep(delay)  # the moment differs from run to run: each is as good as another
        with_pid = pids[victim]
        try:
            os.kill(with_pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was faster
        parked.result()
    eventually(host.daemon_answers)
    state = sandbox.wait_state("running", "standby", "stopped", "failed", timeout=120)
    if state in ("stopped", "failed"):
        wd_ok("start", sandbox.id)
    assert sandbox.sh("cat /root/file") == "kept"
    assert not (sandbox.directory / "standby.new").exists()
    assert not (sandbox.directory / "standby").exists()


@pytest.mark.parametrize("victim", ["shim", "vmm", "workdird"])
def test_a_kill_in_the_middle_of_a_wake_loses_no_disk(sandbox, victim):
    sandbox.sh("echo kept > /root/file; sync")
    park(sandbox)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        woken = pool.submit(sandbox.exec, "true")
        if victim == "workdird":
            host.kill_daemon()
        else:
            probe = (lambda: sandbox.shim_pid) if victim == "shim" else (lambda: sandbox.qemu_pid)
            try:
                os.kill(eventually(probe, what=victim), signal.SIGKILL)
            except ProcessLookupError:
                pass
        woken.result()
    state = sandbox.wait_state("running", "standby", "stopped", "failed", timeout=120)
    if state in ("stopped", "failed"):
        wd_ok("start", sandbox.id)
    assert sandbox.sh("cat /root/file") == "kept"


def test_systemctl_stop_of_one_that_is_parked_is_no_matter(sandbox):
    park(sandbox)
    run("systemctl", "stop", sandbox.unit)
    assert sandbox.state == "standby" and sandbox.usable()


def test_twenty_times_and_nothing_is_left(sandbox):
    sandbox.sh(COUNTER)
    last, before = 0, sorted(os.listdir(sandbox.directory))
    for turn in range(20):
        park(sandbox)
        now = counter(sandbox)
        assert now >= last, f"turn {turn}"
        last = now
    assert sorted(os.listdir(sandbox.directory)) == before
    eventually(lambda: not list(host.STATE.glob("sandboxes/.trash-*")), 30)
