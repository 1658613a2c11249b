"""ls, inspect, stop, start, rm, logs, doctor, version: a sandbox from its creation to its end."""

import os
import signal

import pytest

from support import host, leaks
from support.process import eventually, finish, must, read_until, run, started, wd, wd_fails, wd_ok
from support.sandbox import create, listed, tiny


@pytest.fixture(scope="module")
def one(no_leaks):
    """A sandbox that the tests here stop and start; each finds it running."""
    sandbox = create(*tiny(), "--name", "wdtest-life", "--label", "suite=life")
    yield sandbox
    sandbox.remove()


@pytest.fixture
def running(one):
    if one.state != "running":
        wd_ok("start", one.id)
    return one


# ---- looking

def test_inspect_tells_everything(running):
    seen = running.inspect()
    assert (seen["id"], seen["name"], seen["unit"]) == (running.id, "wdtest-life", running.unit)
    assert seen["state"] == "running" and seen["owner_uid"] == 0
    assert (seen["cpus"], seen["memory_bytes"]) == (1, 128 << 20)
    assert seen["labels"] == {"suite": "life"}
    assert seen["created_us"] > 0 and seen["started_us"] >= seen["created_us"]
    assert seen["agent_version"] and seen["kernel_release"]
    assert os.path.exists(seen["console"])


def test_ls_is_a_table_and_json(running):
    table = wd_ok("ls").text.splitlines()
    assert any(running.id in line and "wdtest-life" in line and "running" in line
               for line in table), table
    assert running.id in {entry["id"] for entry in wd_ok("ls", "--json").json}
    assert running.report["accel"] in wd_ok("ls").text


def test_systemd_knows_the_sandbox(running):
    seen = host.unit_properties(running.unit, "ActiveState", "Slice", "Type", "Description")
    assert (seen["ActiveState"], seen["Slice"], seen["Type"]) == ("active", "workdir.slice",
                                                                 "notify")
    assert running.id in seen["Description"]
    assert running.id in must("systemctl", "status", running.unit).text
    assert must("journalctl", "-q", "-n", "1", f"WORKDIR_SANDBOX={running.id}").out


def test_sandboxes_do_not_hang_on_workdird(running):
    for kind in ("PartOf", "BindsTo", "Requires", "Requisite"):
        assert "workdird" not in host.unit_property(running.unit, kind)


# ---- stop and start

@pytest.mark.target
def test_stop_and_start_keep_the_disk(running):
    running.sh("echo kept > /root/file; echo also > /workspace/other")
    wd_ok("stop", running.id)
    seen = running.inspect()
    assert (seen["state"], seen["end_reason"]) == ("stopped", "stopped")
    assert seen["ended_us"] > 0
    assert host.unit_property(running.unit, "ActiveState") in ("inactive", "")
    report = wd_ok("start", "--json", running.id).json
    assert report["boot_path"] == "cold_boot" and report["timings_ms"]["ready"] > 0
    assert running.sh("cat /root/file /workspace/other") == "kept\nalso"
    assert "end_reason" not in running.inspect() or running.inspect()["end_reason"] == "none"


def test_what_was_not_synced_is_on_disk_after_a_stop(running):
    running.sh("seq 100000 > /root/numbers")
    wd_ok("stop", running.id)
    wd_ok("start", running.id)
    assert running.sh("tail -n1 /root/numbers; wc -l < /root/numbers") == "100000\n100000"
    running.sh("rm /root/numbers")


def test_identity_stays_over_stop_and_start(running):
    before = running.sh("cat /etc/machine-id; hostname")
    wd_ok("stop", running.id)
    wd_ok("start", running.id)
    assert running.sh("cat /etc/machine-id; hostname") == before


def test_stop_twice_is_fine_and_start_of_a_running_one_is_not(running):
    wd_ok("stop", running.id)
    wd_ok("stop", running.id)
    wd_ok("start", running.id)
    assert "running" in wd_fails("start", running.id, rc=5).error


def test_exec_in_a_stopped_sandbox_says_so(running):
    wd_ok("stop", running.id)
    done = running.exec("true")
    assert done.rc == 125 and "stopped" in done.error and "wd start" in done.error, str(done)


def test_systemctl_stop_is_a_stop(running):
    must("systemctl", "stop", running.unit)
    running.wait_state("stopped")
    assert running.inspect()["end_reason"] == "stopped"
    wd_ok("start", running.id)
    assert running.usable()


def test_poweroff_in_the_guest_is_a_stop(running):
    running.exec("sh", "-c", "sync; echo o > /proc/sysrq-trigger || kill -TERM 1", timeout=60)
    running.wait_state("stopped", "failed")
    assert running.inspect()["end_reason"] in ("stopped", "vmm-crash", "agent-lost")
    wd_ok("start", running.id)


def test_stop_ends_a_running_exec(running):
    with running.start("sh", "-c", "echo ready; sleep 1000") as client:
        read_until(client.stdout, b"ready")
        wd_ok("stop", running.id)
        done = finish(client)
    assert done.rc in (125, 128 + signal.SIGTERM, 128 + signal.SIGKILL), str(done)


@pytest.mark.parametrize("victim", ["qemu_pid", "shim_pid"])
def test_killed_processes_are_recorded_and_it_starts_again(running, victim):
    os.kill(getattr(running, victim), signal.SIGKILL)
    running.wait_state("failed", "stopped")
    seen = running.inspect()
    assert seen["end_reason"] == {"qemu_pid": "vmm-crash", "shim_pid": "signal"}[victim], seen
    assert seen["end_detail"]
    wd_ok("start", running.id)
    assert running.usable()


# ---- rm

def test_rm_in_every_state_and_twice(make_sandbox):
    sandbox = make_sandbox(*tiny())
    wd_ok("stop", sandbox.id)
    wd_ok("rm", sandbox.id)
    again = wd("rm", sandbox.id)
    assert again.rc in (0, 3), str(again)
    failed = make_sandbox(*tiny())
    os.kill(failed.shim_pid, signal.SIGKILL)
    failed.wait_state("failed", "stopped")
    wd_ok("rm", failed.id)
    assert not {sandbox.id, failed.id} & set(listed())


def test_rm_while_it_stops_and_by_two_at_once(target):
    sandbox = create(*tiny())
    with started("wd", "stop", sandbox.id) as stopping, started("wd", "rm", sandbox.id) as one, \
            started("wd", "rm", sandbox.id) as other:
        results = [finish(stopping), finish(one), finish(other)]
    assert any(result.rc == 0 for result in results[1:]), "\n".join(map(str, results))
    assert sandbox.id not in listed()


def test_rm_with_an_exec_running(make_sandbox):
    sandbox = make_sandbox(*tiny())
    with sandbox.start("sh", "-c", "echo ready; sleep 1000") as client:
        read_until(client.stdout, b"ready")
        wd_ok("rm", sandbox.id)
        done = finish(client)
    assert done.rc == 125 and done.err, str(done)


def test_rm_of_several_by_label_and_what_is_missing(make_sandbox):
    one, two, three = (make_sandbox(*tiny(), "--label", f"batch={b}") for b in "xxy")
    partly = wd("rm", "sb-aaaaaaaaaa", three.id)
    assert partly.rc == 3 and "sb-aaaaaaaaaa" in partly.error
    assert three.id not in listed(), "one that is missing must not keep the others"
    wd_ok("rm", "--label", "batch=x")
    assert not {one.id, two.id} & set(listed())


def test_rm_all(no_shared_sandboxes, one):
    create(*tiny())
    wd_ok("rm", "--all")
    assert listed() == {}


def test_rm_without_arguments_removes_nothing(sandbox):
    wd_fails("rm", rc=2)
    assert sandbox.state == "running"


# ---- logs

def test_logs_show_the_console(sandbox):
    sandbox.sh("echo wdtest-console-line > /dev/console")
    eventually(lambda: b"wdtest-console-line" in wd_ok("logs", sandbox.id).out)


def test_logs_follow(sandbox):
    with started("wd", "logs", "-f", sandbox.id) as client:
        sandbox.sh("echo wdtest-follow-1 > /dev/console")
        read_until(client.stdout, b"wdtest-follow-1")
        sandbox.sh("echo wdtest-follow-2 > /dev/console")
        read_until(client.stdout, b"wdtest-follow-2")


def test_the_console_log_is_bounded(make_sandbox):
    sandbox = make_sandbox(*tiny())
    sandbox.exec("sh", "-c", "yes wdtest-flood | head -c 3M > /dev/console", timeout=300)
    size = os.stat(sandbox.inspect()["console"]).st_blocks * 512
    assert size <= 1 << 20, f"a guest wrote {size} bytes of the host's disk through its console"
    assert sandbox.usable()


# ---- doctor and version

@pytest.mark.target
def test_doctor_checks_the_host(target):
    checks = wd("doctor", "--json").json
    names = " ".join(check["check"] for check in checks)
    for subject in ("kvm", "cgroup", "qemu", "guest", "disk", "polkit", "dbus"):
        assert subject in names.lower(), names
    for check in checks:
        assert check["status"] in ("ok", "warning", "failed"), check
        assert check["status"] == "ok" or check["remedy"], check
    assert not [check for check in checks if check["status"] == "failed"], checks


def test_doctor_without_workdird(target):
    must("systemctl", "mask", "--runtime", "--now", "workdird.service")
    try:
        done = wd("doctor", timeout=60)
        assert done.rc != 0 and "workdird" in done.text + done.error
        assert wd_fails("ls", timeout=60).error
    finally:
        must("systemctl", "unmask", "--runtime", "workdird.service")
        must("systemctl", "start", "workdird.service")


daemon_may_restart = True


def test_version(target):
    installed = must("dpkg-query", "-W", "-f", "${Version}", "workdir").text
    shown = wd_ok("version").text
    assert installed.split("-")[0].split("+")[0] in shown


# ---- the command line itself

@pytest.mark.parametrize("args", [[], ["create"], ["exec"], ["ls"], ["inspect"], ["stop"],
                                  ["start"], ["rm"], ["logs"], ["image"], ["doctor"], ["version"]],
                         ids=lambda args: args[0] if args else "wd")
def test_help_fits_80_columns_on_stdout(args):
    shown = wd(*args, "--help")
    assert shown.rc == 0 and not shown.err, str(shown)
    assert max(len(line) for line in shown.text.splitlines()) <= 80


def test_a_typing_error_gets_a_suggestion_and_no_help_dump(target):
    done = wd_fails("craete", rc=2)
    assert "create" in done.error and len(done.error.splitlines()) <= 4, str(done)


def test_an_unknown_option(target):
    assert "--no-such" in wd_fails("create", "--no-such", rc=2).error


def test_progress_is_only_for_terminals(target):
    done = wd_ok("create", *tiny())
    wd_ok("rm", done.text.strip())
    assert not done.err, str(done)


def test_leak_checker_sees_a_sandbox(target):
    """The checker is what most tests here rest on."""
    before = leaks.snapshot()
    sandbox = create(*tiny())
    kinds = {item.split()[0] for item in leaks.left_over(before) if sandbox.id in item}
    sandbox.remove()
    assert {"unit", "process", "directory", "runtime", "cgroup", "row"} <= kinds
    assert run("true").rc == 0 and not leaks.left_over(before)
