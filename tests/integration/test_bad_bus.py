"""Calls that no well-meaning client makes: each gets an error, and workdird goes on."""

import os
import socket
import struct

import pytest

from support import host
from support.bus import ROOT, Bus, BusError
from support.process import eventually, run, wd, wd_fails, wd_ok
from support.sandbox import listed
from support.session import (STDIN, STDOUT, WINDOW, Channel, Type, fields, open_exec, pack,
                             run_session)

WILD_IDS = ["", " ", "sb-", "sb-short", "sb-AAAAAAAAAA", "sb-0000000000", "SB-aaaaaaaaaa", "../../etc",
            "sb-aaaaaaaaaa/../x", "/", ".", "-", "a" * 300, "sb-" + "a" * 300, "a\nb", "\x1b[31mred",
            "ünïcödé", "☕" * 100, "%s%n", "$(id)", "sb-aaaaaaaaaa.service", "*", "workdird"]
INVALID = "dev.workdir1.Error.InvalidArgument"
NOT_FOUND = "dev.workdir1.Error.NotFound"
LIMIT = "dev.workdir1.Error.Limit"


@pytest.fixture(scope="module")
def bus(target):
    with Bus() as connection:
        yield connection


@pytest.fixture(autouse=True)
def nothing_happened(target):
    """No sandbox came or went, whatever was called."""
    before = {i: e["state"] for i, e in listed().items()}
    yield
    assert {i: e["state"] for i, e in listed().items() if i in before} == before
    new = set(listed()) - set(before)
    if new:
        wd_ok("rm", *new)
    # The shared sandbox may have been made meanwhile.
    from support.sandbox import SHARED
    assert not new - SHARED, "a wrong call made a sandbox"


# ---- ids and names

@pytest.mark.parametrize("verb", [["inspect"], ["exec"], ["stop"], ["start"], ["rm"], ["logs"]],
                         ids=lambda verb: verb[0])
def test_wild_ids(verb):
    for wild in WILD_IDS:
        command = [*verb, "--", wild] if verb != ["exec"] else ["exec", "--", wild, "true"]
        done = wd(*command)
        allowed = (125,) if verb == ["exec"] else (2, 3)
        assert done.rc in allowed and done.err, f"{wild!r}: {done}"
        assert b"\x1b" not in done.err and len(done.err) < 1000, f"{wild!r}: {done}"


def test_wild_ids_on_the_bus(bus):
    for wild in WILD_IDS:
        with pytest.raises(BusError) as failure:
            bus.manager("Get", "s", wild)
        assert failure.value.name in (INVALID, NOT_FOUND), failure.value
        assert len(failure.value.message) < 500


def test_wild_object_paths(bus):
    for path in ("/dev/workdir1/sandbox/sb_2daaaaaaaaaa", "/dev/workdir1/sandbox/x", "/",
                 "/dev/workdir1/sandbox/sb_2d_2e_2e_2f", "/dev/workdir1/sandbox/_"):
        with pytest.raises(BusError):
            bus.call(path, "Sandbox", "Inspect")


@pytest.mark.parametrize("name", ["a" * 64, "a" * 300, "", "-a", "A", "a b", "a/b", "sb-aaaaaaaaaa",
                                  "ü", "a\n", ".a", "..", "\x1b[31m"])
def test_wild_names(name):
    done = wd_fails("create", f"--name={name}", rc=2)
    assert "\x1b" not in done.error and len(done.error) < 600
    if len(name) == 300:
        assert "300" in done.error and "63" in done.error


@pytest.mark.parametrize("label", ["novalue", "=x", "A=x", "a=" + "x" * 256, "a=\n", "a b=c",
                                   "k" * 64 + "=v"])
def test_wild_labels(label):
    wd_fails("create", f"--label={label}", rc=2)


def test_too_many_labels():
    wd_fails("create", *[f"--label=l{n}=v" for n in range(33)], rc=2)


# ---- options of Create

@pytest.mark.parametrize("options", [
    {"no-such-option": ("s", "x")},
    {"Image": ("s", "base")},
    {"image": ("u", 3)},
    {"image": ("as", ["base"])},
    {"image": ("s", "../base")},
    {"image": ("s", "")},
    {"cpus": ("s", "1")},
    {"cpus": ("i", -1)},
    {"cpus": ("t", 1)},
    {"cpus": ("u", 0)},
    {"memory": ("s", "512M")},
    {"memory": ("t", 0)},
    {"memory": ("t", 1)},
    {"memory": ("t", (1 << 28) + 1)},
    {"disk": ("t", 0)},
    {"disk": ("d", 8e9)},
    {"name": ("s", "x" * 300)},
    {"name": ("v", ("s", "wdtest"))},
    {"labels": ("as", ["a=b"])},
    {"labels": ("a{ss}", {"": "x"})},
    {"labels": ("a{ss}", {f"l{n}": "" for n in range(1000)})},
    {"env": ("s", "A=b")},
    {"env": ("as", ["A"])},
    {"env": ("as", ["=b"])},
    {"env": ("as", [""])},
    {"env": ("as", [f"V{n}=" + "x" * 100 for n in range(20000)])},
    {"env": ("as", ["BIG=" + "x" * (4 << 20)])},
    {"token": ("s", "t" * 65)},
    {"token": ("u", 1)},
], ids=lambda o: "-".join(o) + "-" + next(iter(o.values()))[0])
def test_wrong_options_of_create(bus, options):
    with pytest.raises(BusError) as failure:
        bus.manager("Create", "a{sv}", options)
    assert failure.value.name == INVALID, failure.value
    assert len(failure.value.message) < 1000


def test_past_every_cap_without_overflow(bus):
    for options in ({"memory": ("t", (1 << 64) - (1 << 20))}, {"memory": ("t", 1 << 63)},
                    {"disk": ("t", (1 << 64) - (1 << 20))}, {"disk": ("t", 1 << 63)},
                    {"cpus": ("u", (1 << 32) - 1)}):
        with pytest.raises(BusError) as failure:
            bus.manager("Create", "a{sv}", options)
        assert failure.value.name in (LIMIT, INVALID), failure.value


def test_wrong_signatures(bus):
    for method, signature, values in (("Create", "", ()), ("Create", "s", ("x",)),
                                      ("Create", "a{ss}", ({"image": "base"},)),
                                      ("Get", "u", (1,)), ("Get", "ss", ("a", "b")),
                                      ("List", "", ()), ("ListImages", "s", ("x",)),
                                      ("NoSuchMethod", "", ())):
        with pytest.raises(BusError) as failure:
            bus.manager(method, signature, *values)
        assert failure.value.name.startswith("org.freedesktop.DBus.Error."), failure.value


def test_unknown_options_everywhere(bus, sandbox):
    unknown = {"no-such-option": ("s", "x")}
    for method, signature, values in (("Stop", "a{sv}", (unknown,)), ("Start", "a{sv}", (unknown,)),
                                      ("Remove", "a{sv}", (unknown,)),
                                      ("Exec", "asa{sv}", (["true"], unknown))):
        with pytest.raises(BusError) as failure:
            bus.call(sandbox.path, "Sandbox", method, signature, *values)
        assert failure.value.name == INVALID, (method, failure.value)
    for method, values in (("List", (unknown,)), ("BuildImage", ("base", unknown)),
                           ("RemoveImage", ("base", unknown))):
        signature = "a{sv}" if method == "List" else "sa{sv}"
        with pytest.raises(BusError) as failure:
            bus.manager(method, signature, *values)
        assert failure.value.name == INVALID, (method, failure.value)
    assert sandbox.usable()


def test_properties_cannot_be_written(bus, sandbox):
    done = run("busctl", "set-property", "dev.workdir1", sandbox.path, "dev.workdir1.Sandbox",
               "State", "s", "stopped")
    assert done.rc != 0 and sandbox.state == "running"


def test_an_interface_that_is_there_describes_itself(sandbox):
    shown = run("busctl", "introspect", "dev.workdir1", sandbox.path).text
    for member in (".Exec", ".Stop", ".Start", ".Remove", ".Inspect", ".OpenConsole", ".State"):
        assert member in shown
    assert ".Create" in run("busctl", "introspect", "dev.workdir1", ROOT).text


# ---- Exec

@pytest.mark.parametrize("argv,options", [
    ([], {}),
    ([""], {}),
    (["true", "x" * (4 << 20)], {}),
    (["true"] + ["x" * 1000] * 2000, {}),
    (["true"] * 1_000_000, {}),
    (["true"], {"env": ("as", ["A"])}),
    (["true"], {"env": ("as", ["A=" + "x" * (4 << 20)])}),
    (["true"], {"cwd": ("u", 1)}),
    (["true"], {"cwd": ("s", "x" * 100_000)}),
    (["true"], {"user": ("s", "x" * 100_000)}),
    (["true"], {"timeout_ms": ("s", "1")}),
    (["true"], {"timeout_ms": ("i", -1)}),
], ids=["no-argv", "empty-argv0", "4MiB-argument", "2MB-in-all", "a-million-arguments", "env-no-equals",
        "env-4MiB", "cwd-type", "cwd-long", "user-long", "timeout-type", "timeout-negative"])
def test_wrong_arguments_of_exec(bus, sandbox, argv, options):
    """Refused at once, or in the session: an error either way, and a small one."""
    try:
        session = open_exec(bus, sandbox, argv, **options)
    except BusError as failure:
        assert failure.name in (INVALID, LIMIT), failure
        assert len(failure.message) < 1000
    else:
        with session:
            while (frame := session.receive()) is not None:
                if frame[1] in (Type.error, Type.open_failed):
                    assert len(frame[3]) < 2000
                    break
                assert frame[1] != Type.exit, "it ran"
    assert sandbox.usable()


def test_an_argument_at_the_limit_of_linux_works_and_one_byte_more_says_the_limit(bus, sandbox):
    with open_exec(bus, sandbox, ["sh", "-c", 'printf %s "$1" | wc -c', "sh",
                                  "x" * 131071]) as session:
        assert run_session(session)[0].strip() == b"131071"
    try:
        with open_exec(bus, sandbox, ["true", "x" * 131072]) as session:
            run_session(session)
        pytest.fail("one byte too many was not refused")
    except (BusError, AssertionError) as failure:
        assert "131071" in str(failure) or "128" in str(failure), failure


# ---- sessions

def ends_with_error(session):
    """Reads to the end; whether workdir said on the way that something was wrong."""
    said = False
    while (frame := session.receive()) is not None:
        said = said or frame[1] == Type.error
    return said


@pytest.mark.parametrize("nonsense", [
    b"GET / HTTP/1.1\r\n\r\n" * 10,
    os.urandom(100_000),
    b"\xff" * 1000,
    pack(0x7f),
    pack(Type.hello),
    pack(Type.setup, 0, b"x" * 100),
    pack(Type.shutdown),
    pack(Type.ping),
    pack(Type.open, 0, b"\x01\x04\x00\x00\x00true"),
    pack(Type.exit, 0, b""),
    pack(Type.data, STDIN, b"x", channel=1),
    pack(Type.data, STDOUT, b"x"),
    pack(Type.data, 9, b"x"),
    pack(Type.credit, STDOUT, struct.pack("<I", WINDOW + 1)),
    pack(Type.credit, STDOUT, struct.pack("<I", WINDOW)) * 2,
    pack(Type.credit, STDOUT, b"xx"),
    pack(Type.credit, STDIN, struct.pack("<I", 1)),
    pack(Type.signal, 0, b""),
    pack(Type.signal, 0, b"\xff"),
    struct.pack("<IIBBH", 0, 0xffffffff, Type.data, 0, 0),
    struct.pack("<IIBBH", 0, 65537, Type.data, 0, 0),
    struct.pack("<IIBBH", 0, 0, Type.data, 0, 1),
], ids=["http", "random", "ff", "unknown-type", "hello", "setup", "shutdown", "ping", "open", "exit",
        "other-channel", "data-on-stdout", "data-on-no-stream", "credit-over-window", "credit-twice",
        "credit-short", "credit-for-stdin", "signal-empty", "signal-255", "length-4G",
        "length-64K+1", "header-not-zero"])
def test_nonsense_on_a_session_ends_that_session_alone(bus, sandbox, nonsense):
    with open_exec(bus, sandbox, ["sh", "-c", "exec sleep 6161"]) as session:
        session.socket.sendall(nonsense)
        assert ends_with_error(session), "closed without a word"
    eventually(lambda: sandbox.exec("pgrep", "-f", "sleep 6161").rc == 1, what="its process ended")
    assert sandbox.usable()


def test_data_without_credit_is_a_violation(bus, sandbox):
    with open_exec(bus, sandbox, ["sleep", "7171"]) as session:
        session.socket.setblocking(False)
        try:
            for _ in range(1000):
                session.socket.send(pack(Type.data, STDIN, b"x" * 65536))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        session.socket.settimeout(60)
        assert ends_with_error(session)
    assert sandbox.usable()


def test_sessions_that_are_opened_and_dropped_leave_nothing(bus, sandbox):
    fds = len(os.listdir(f"/proc/{sandbox.shim_pid}/fd"))
    for _ in range(200):
        open_exec(bus, sandbox, ["sleep", "8181"]).close()
    eventually(lambda: sandbox.exec("pgrep", "-f", "sleep 8181").rc == 1, 60)
    eventually(lambda: len(os.listdir(f"/proc/{sandbox.shim_pid}/fd")) <= fds, 30)
    assert len(os.listdir(f"/proc/{host.daemon_pid()}/fd")) < 200


def test_more_sessions_than_a_sandbox_may_have(bus, sandbox):
    sessions, refused = [], None
    try:
        for _ in range(200):
            session = open_exec(bus, sandbox, ["sleep", "9191"])
            sessions.append(session)
            frame = session.receive()
            if frame[1] in (Type.error, Type.open_failed):
                refused = fields(frame[3])
                break
        assert refused, "there is no limit"
    except BusError as failure:
        refused = failure
    finally:
        for session in sessions:
            session.close()
    eventually(lambda: sandbox.exec("pgrep", "-f", "sleep 9191").rc == 1, 60)
    assert sandbox.usable()


def test_half_a_frame_and_silence_keeps_nobody_waiting(bus, sandbox):
    with open_exec(bus, sandbox, ["sleep", "1000"]) as session:
        session.socket.sendall(b"\0" * 5)
        assert sandbox.usable()


def test_the_sessions_other_end_is_a_socket_of_ours_alone(bus, sandbox):
    fd = bus.call(sandbox.path, "Sandbox", "Exec", "asa{sv}", ["cat"], {})
    with Channel(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fd)) as session:
        session.send(Type.eof, STDIN)
        assert fields(session_exit(session))


def session_exit(session):
    while (frame := session.receive()) is not None:
        if frame[1] == Type.exit:
            return frame[3]
    raise AssertionError("no exit")


# ---- many at once

def test_a_client_with_a_thousand_calls_keeps_nobody_waiting(bus):
    for _ in range(1000):
        assert isinstance(bus.manager("List", "a{sv}", {}), list)
    assert wd_ok("version").rc == 0
