"""Exec: arguments, streams, exit statuses, signals, time limits."""

import concurrent.futures
import fcntl
import hashlib
import io
import os
import pty
import signal
import subprocess
import tarfile
import termios

import pytest

from support import host
from support.process import (eventually, finish, read_until, run, wd, wd_fails, wd_ok)
from support.sandbox import tiny

MIB = 1 << 20


# ---- arguments and surroundings

ARGUMENTS = ["with space", "$HOME `id` $(id)", "'single' \"double\"", "", "two\nlines", "*", "\\n",
             "-v", "--", "--timeout", "tab\there", "ünïcödé ☕", "a" * 100_000]


@pytest.mark.target
def test_argv_arrives_untouched(sandbox):
    echo = "import sys; sys.stdout.buffer.write(b'\\0'.join(map(str.encode, sys.argv[1:])))"
    done = sandbox.exec_ok("python3", "-c", echo, *ARGUMENTS)
    assert done.out.decode().split("\0") == ARGUMENTS


def test_argv_may_hold_bytes_that_are_no_text(sandbox):
    done = sandbox.exec("printf", "%s", b"\xff\xfe")
    # D-Bus strings are UTF-8: passed on or refused, never mangled.
    assert (done.rc, done.out) == (0, b"\xff\xfe") or (done.rc == 125 and b"UTF-8" in done.err)


def test_a_single_argument_of_4_mib_is_refused_clearly(sandbox):
    # More than execve(2) lets through to wd itself, so it goes over D-Bus: test_bad_dbus.py.
    done = sandbox.exec("true", "x" * 131_000)
    assert done.rc == 0, str(done)


@pytest.mark.parametrize("status", [0, 1, 2, 42, 124, 125, 126, 127, 255])
def test_exit_status_is_passed_on(sandbox, status):
    assert sandbox.exec("sh", "-c", f"exit {status}").rc == status


def test_death_by_signal_is_128_plus_its_number(sandbox):
    assert sandbox.exec("sh", "-c", "kill -KILL $$").rc == 128 + 9
    assert sandbox.exec("sh", "-c", "kill -TERM $$").rc == 128 + 15


def test_command_not_found_and_not_executable(sandbox):
    missing = sandbox.exec("no-such-command")
    assert missing.rc == 127 and "no-such-command" in missing.error
    plain = sandbox.exec("/etc/passwd")
    assert plain.rc == 126 and "/etc/passwd" in plain.error


def test_workdirs_own_failures_are_125(sandbox):
    assert wd_fails("exec", "sb-aaaaaaaaaa", "--", "true", rc=125).error
    assert wd_fails("exec", "--cwd", "/no/such", sandbox.id, "--", "true", rc=125)
    assert wd_fails("exec", "--user", "nobody-knows", sandbox.id, "--", "true", rc=125)


def test_it_starts_in_workspace_or_where_cwd_says(sandbox):
    assert sandbox.sh("pwd") == "/workspace"
    assert sandbox.exec_ok("pwd", options=["--cwd", "/usr/share"]).out == b"/usr/share\n"


def test_env_and_its_defaults(sandbox):
    script = 'printf "%s|%s|%s|" "$A" "$B" "$HOME"; command -v ls'
    done = sandbox.exec_ok("sh", "-c", script, options=["--env", "A=1 2", "--env", "B=x=y"])
    assert done.text.startswith("1 2|x=y|/root|/")


def test_user_by_name_and_by_number(sandbox):
    assert sandbox.sh("id -un") == "root"
    by_name = sandbox.exec_ok("sh", "-c", "id -un; echo $HOME", options=["--user", "agent"]).text
    assert by_name == "agent\n/home/agent\n"
    assert sandbox.exec_ok("id", "-u", options=["--user", "1000"]).out == b"1000\n"


# ---- streams

@pytest.mark.target
def test_stdout_and_stderr_stay_apart(sandbox):
    done = sandbox.exec("sh", "-c", "echo out; echo err >&2; echo out2; exit 3")
    assert (done.out, done.err, done.rc) == (b"out\nout2\n", b"err\n", 3)


@pytest.mark.target
@pytest.mark.parametrize("data", ["☕".encode() * 100_000, os.urandom(10 * MIB)],
                         ids=["coffee", "10MiB-random"])
def test_bytes_through_stdin_and_stdout_come_out_the_same(sandbox, data):
    done = sandbox.exec_ok("cat", stdin=data)
    assert hashlib.sha256(done.out).digest() == hashlib.sha256(data).digest()


def test_the_guest_gets_the_same_bytes(sandbox):
    data = os.urandom(MIB) + b"\0\r\n\x1b[31m"
    done = sandbox.exec_ok("sha256sum", stdin=data)
    assert done.text.split()[0] == hashlib.sha256(data).hexdigest()


def test_end_of_stdin_reaches_the_guest(sandbox):
    assert sandbox.exec_ok("wc", "-c", stdin=b"12345").text.strip() == "5"
    assert sandbox.exec_ok("wc", "-c", stdin=subprocess.DEVNULL).text.strip() == "0"


def test_a_closed_stdin_is_an_empty_one(sandbox):
    done = run("sh", "-c", f"wd exec {sandbox.id} -- wc -c <&-")
    assert (done.rc, done.text.strip()) == (0, "0"), str(done)


@pytest.mark.parametrize("options", [[], ["--timeout", "60"]], ids=["plain", "timeout"])
def test_stdin_is_never_waited_for(sandbox, options):
    read_end, write_end = os.pipe()
    try:
        done = sandbox.exec("echo", "hi", options=options, stdin=read_end, timeout=30)
        assert (done.rc, done.out) == (0, b"hi\n")
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_command_that_does_not_read_its_stdin_ends_well(sandbox):
    done = sandbox.exec("true", stdin=os.urandom(4 * MIB))
    assert done.rc == 0, str(done)


def test_a_background_process_does_not_hang_the_exec(sandbox):
    done = sandbox.exec("sh", "-c", "sleep 1000 & echo started", timeout=30)
    assert (done.rc, done.out) == (0, b"started\n")
    sandbox.exec("pkill", "-x", "sleep")


def test_all_output_is_there_when_the_command_has_ended(sandbox):
    done = sandbox.exec("sh", "-c", "head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2")
    assert (done.rc, len(done.out), len(done.err)) == (0, 3_000_000, 200_000)


def test_a_reader_that_leaves_ends_the_command(sandbox):
    with sandbox.start("sh", "-c", "echo first; exec yes wdtest-yes") as client:
        read_until(client.stdout, b"first")
        client.stdout.close()
        client.stdout = None
        client.wait(timeout=60)
    eventually(lambda: sandbox.exec("pgrep", "-x", "yes").rc == 1, what="yes has ended")


def test_tar_both_ways(sandbox):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in {"a file": b"x" * 100_000, "ünï": b"", "sub/exec": b"#!/bin/sh\n"}.items():
            entry = tarfile.TarInfo(f"tree/{name}")
            entry.size, entry.mode = len(content), 0o755 if "exec" in name else 0o644
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("tree/link")
        link.type, link.linkname = tarfile.SYMTYPE, "a file"
        tar.addfile(link)
    sandbox.exec_ok("tar", "x", options=["--cwd", "/tmp"], stdin=packed.getvalue())
    back = sandbox.exec_ok("tar", "c", "tree", options=["--cwd", "/tmp"]).out
    sandbox.exec_ok("rm", "-rf", "/tmp/tree")
    with tarfile.open(fileobj=io.BytesIO(back)) as tar:
        assert tar.extractfile("tree/a file").read() == b"x" * 100_000
        assert tar.getmember("tree/sub/exec").mode & 0o111
        assert tar.getmember("tree/link").linkname == "a file"
        assert tar.getmember("tree/ünï").size == 0


@pytest.mark.target
def test_a_slow_reader_costs_no_memory_and_slows_nobody(sandbox):
    with sandbox.start("sh", "-c", "yes | head -c 2G") as client:
        pids = {"workdird": host.daemon_pid(), "shim": sandbox.shim_pid, "wd": client.pid}
        client.stdout.read(MIB)
        before = {name: host.rss(pid) for name, pid in pids.items()}
        for _ in range(20):
            client.stdout.read(MIB)
            assert sandbox.exec_ok("echo", "quick", timeout=30).out == b"quick\n"
        grown = {name: host.rss(pid) - before[name] for name, pid in pids.items()}
        assert all(growth < 8 * MIB for growth in grown.values()), grown
    eventually(lambda: sandbox.exec("pgrep", "-x", "yes").rc == 1, what="yes has ended")


def test_a_guest_that_does_not_read_costs_no_memory(sandbox):
    with sandbox.start("sleep", "1000", stdin=subprocess.PIPE) as client:
        os.set_blocking(client.stdin.fileno(), False)
        eventually(lambda: not _writable(client.stdin), 30, "wd stops reading its stdin")
        assert host.rss(client.pid) < 64 * MIB
        assert host.rss(sandbox.shim_pid) < 64 * MIB
        assert sandbox.usable()


def _writable(stream):
    try:
        os.write(stream.fileno(), b"x" * 65536)
    except BlockingIOError:
        return False
    return True


@pytest.mark.target
def test_twenty_at_once(sandbox):
    def one(number):
        return sandbox.exec("sh", "-c", f"cat; exit {number}", stdin=b"%d" % number)

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        for number, done in enumerate(pool.map(one, range(20))):
            assert (done.rc, done.out) == (number, b"%d" % number), str(done)


# ---- time limit

@pytest.mark.target
def test_timeout_ends_the_whole_tree(sandbox):
    done = sandbox.exec("sh", "-c", "sleep 3131 & sleep 3131 & setsid sleep 3131 & wait",
                        options=["--timeout", "1"], timeout=60)
    assert done.rc == 124, str(done)
    assert "timeout" in done.error or "timed out" in done.error, str(done)
    assert sandbox.exec("pgrep", "-f", "sleep 3131").rc == 1, "a grandchild is left"


def test_timeout_ends_what_ignores_sigterm(sandbox):
    done = sandbox.exec("sh", "-c", "trap '' TERM; while :; do sleep 0.2; done",
                        options=["--timeout", "1"], timeout=60)
    assert done.rc == 124, str(done)


def test_timeout_that_is_not_reached_changes_nothing(sandbox):
    done = sandbox.exec("sh", "-c", "echo fine; exit 4", options=["--timeout", "100"])
    assert (done.rc, done.out) == (4, b"fine\n")


@pytest.mark.parametrize("value", ["-1", "soon", "", "1e400"])
def test_nonsense_timeouts(sandbox, value):
    done = sandbox.exec("true", options=[f"--timeout={value}"])
    assert done.rc in (2, 125) and done.err, str(done)


# ---- signals and a client that goes away

LOOP = "echo ready; while :; do sleep 0.1; done"


@pytest.mark.target
def test_interrupt_is_forwarded(sandbox):
    with sandbox.start("sh", "-c", f"trap 'echo got it; exit 7' INT; {LOOP}") as client:
        read_until(client.stdout, b"ready")
        client.send_signal(signal.SIGINT)
        done = finish(client)
    assert (done.rc, done.out.strip()) == (7, b"got it")


def test_terminate_is_forwarded(sandbox):
    with sandbox.start("sh", "-c", f"trap 'echo got it; exit 8' TERM; {LOOP}") as client:
        read_until(client.stdout, b"ready")
        client.send_signal(signal.SIGTERM)
        done = finish(client)
    assert (done.rc, done.out.strip()) == (8, b"got it")


def test_killed_client_ends_its_command(sandbox):
    with sandbox.start("sh", "-c", "echo ready; exec sleep 4141") as client:
        read_until(client.stdout, b"ready")
        client.send_signal(signal.SIGKILL)
        client.wait()
    eventually(lambda: sandbox.exec("pgrep", "-f", "sleep 4141").rc == 1, what="it has ended")


def _in_a_terminal(argv):
    """Starts a program as the leader of a new terminal: its Popen and the terminal's master."""
    master, slave = pty.openpty()

    def lead():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, preexec_fn=lead,
                               close_fds=False)
    os.close(slave)
    return process, os.fdopen(master, "rb", buffering=0)


def test_closing_the_terminal_detaches(sandbox):
    client, terminal = _in_a_terminal(["wd", "exec", sandbox.id, "--", "sh", "-c",
                                       "echo ready; exec sleep 5151"])
    read_until(terminal, b"ready")
    terminal.close()
    eventually(lambda: client.poll() is not None, what="wd has ended")
    assert sandbox.exec("pgrep", "-f", "sleep 5151").rc == 0, "the command was killed"
    assert sandbox.usable()
    sandbox.exec_ok("pkill", "-f", "sleep 5151")


def test_two_interrupts_in_a_terminal(sandbox):
    client, terminal = _in_a_terminal(["wd", "exec", sandbox.id, "--", "sh", "-c", LOOP])
    with terminal:
        read_until(terminal, b"ready")
        client.send_signal(signal.SIGINT)
        eventually(lambda: client.poll() is not None, what="wd has ended")
    assert client.returncode == 128 + signal.SIGINT


# ---- secrets

SECRET = "hunter2-d41d8cd98f00b204"


def test_secrets_in_env_show_up_nowhere(make_sandbox):
    journal = host.Journal()
    sandbox = make_sandbox(*tiny(), "--env", f"TOKEN={SECRET}")
    with sandbox.start("sh", "-c", LOOP, options=["--env", f"OTHER={SECRET}"]) as client:
        read_until(client.stdout, b"ready")
        shown = wd_ok("inspect", "--json", sandbox.id)
        assert shown.json["env_names"] == ["TOKEN"]
        texts = {"inspect": shown.text, "ls": wd_ok("ls", "--all", "--json").text,
                 "status": run("systemctl", "status", "-l", sandbox.unit).text,
                 "unit": run("systemctl", "show", sandbox.unit).text,
                 "console": wd_ok("logs", sandbox.id).out.decode(errors="replace")}
        for pid in host.unit_pids(sandbox.unit):
            texts[f"cmdline of {host.exe(pid)}"] = open(f"/proc/{pid}/cmdline").read()
            texts[f"environ of {host.exe(pid)}"] = open(f"/proc/{pid}/environ").read()
        errors = [wd("create", "--name", "!", "--env", f"A={SECRET}"),
                  wd("create", "--env", SECRET),
                  wd("exec", "--env", SECRET, sandbox.id, "--", "true"),
                  wd("exec", "--env", f"A={SECRET}", sandbox.id, "--", "/no/such", SECRET),
                  wd("exec", "--env", f"A={SECRET}", "--cwd", "/no", sandbox.id, "--", "true")]
        assert all(error.rc for error in errors)
        texts |= {f"error {n}": error.error for n, error in enumerate(errors)}
        # journald notes the command line of a process that logs: wd's own is its caller's affair.
        texts["journal"] = journal.text("-o", "cat")
    for where, text in texts.items():
        assert SECRET not in text, where


def test_json_tells_workdirs_failure_from_the_commands(sandbox):
    own = wd("exec", "--json", "sb-aaaaaaaaaa", "--", "true")
    theirs = wd("exec", "--json", sandbox.id, "--", "sh", "-c", "exit 125")
    assert own.rc == theirs.rc == 125
    assert b"not_found" in own.out + own.err, str(own)
    assert b"not_found" not in theirs.out + theirs.err and theirs.out, str(theirs)
