"""Who may do what: polkit, ownership, and local users who try anyway."""

import json
import pathlib
import sys

import pytest

from support import host
from support.process import must, read_until, run, started, wd_ok
from support.sandbox import Sandbox, create, listed, tiny

ALICE, BOB, EVE = "wdtest-alice", "wdtest-bob", "wdtest-eve"


@pytest.fixture(scope="module", autouse=True)
def users(no_leaks):
    """Two members of group workdir, and one who is not."""
    for user in (ALICE, BOB, EVE):
        groups = [] if user == EVE else ["-G", "workdir"]
        must("useradd", "--create-home", "--shell", "/bin/bash", *groups, user)
    yield
    for user in (ALICE, BOB, EVE):
        run("loginctl", "terminate-user", user)
        run("userdel", "--remove", user)


@pytest.fixture(scope="module")
def alices(users):
    sandbox = create(*tiny(), "--name", "wdtest-alices", user=ALICE)
    yield sandbox
    sandbox.remove()


def wd_as(user, *args, **kwargs):
    return run("wd", *args, user=user, timeout=60, **kwargs)


def bus_as(user, path, interface, method, *args):
    return run("busctl", "call", "dev.workdir1", path, f"dev.workdir1.{interface}", method, *args,
               user=user, timeout=60)


# ---- what is allowed

@pytest.mark.target
def test_a_member_of_the_group_has_sandboxes_of_their_own(alices):
    uid = int(must("id", "-u", ALICE).text)
    assert listed()[alices.id]["owner_uid"] == uid
    assert wd_as(ALICE, "exec", alices.id, "--", "echo", "mine").out == b"mine\n"
    assert [entry["id"] for entry in wd_as(ALICE, "ls", "--json").json] == [alices.id]
    assert wd_as(ALICE, "inspect", alices.id).rc == 0
    assert wd_as(ALICE, "logs", alices.id).rc == 0
    assert wd_as(ALICE, "stop", alices.id).rc == 0
    assert wd_as(ALICE, "start", alices.id).rc == 0
    mine = wd_as(ALICE, "create", "--json", *tiny())
    assert mine.rc == 0, str(mine)
    assert wd_as(ALICE, "rm", mine.json["id"]).rc == 0


def test_root_sees_and_may_use_all(alices):
    assert alices.id in listed()
    assert alices.exec("echo", "root").out == b"root\n"


def test_reading_images_is_for_members(users):
    assert "base" in wd_as(ALICE, "image", "ls").text
    assert wd_as(ALICE, "version").rc == 0


# ---- what is not

@pytest.mark.target
def test_others_may_not_create(users):
    before = set(listed())
    done = wd_as(EVE, "create", *tiny())
    assert done.rc == 6 and "workdir" in done.error, str(done)
    assert set(listed()) == before


VERBS = [["exec", "{}", "--", "true"], ["inspect", "{}"], ["stop", "{}"], ["start", "{}"],
         ["rm", "{}"], ["logs", "{}"]]


@pytest.mark.target
@pytest.mark.parametrize("user", [BOB, EVE])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_nobody_uses_the_sandbox_of_another(alices, user, verb):
    for what in (alices.id, "wdtest-alices"):
        done = wd_as(user, *[part.format(what) for part in verb])
        assert done.rc == (125 if verb[0] == "exec" else done.rc) and done.rc in (3, 6, 125)
        assert b"traceback" not in done.err.lower() and done.err
    assert alices.state == "running"


@pytest.mark.parametrize("user", [BOB, EVE])
@pytest.mark.parametrize("method,args", [
    ("Exec", ["asa{sv}", "1", "true", "0"]), ("Stop", ["a{sv}", "0"]), ("Start", ["a{sv}", "0"]),
    ("Remove", ["a{sv}", "0"]), ("Inspect", []), ("OpenConsole", [])])
def test_nor_over_the_bus_by_its_path(alices, user, method, args):
    done = bus_as(user, alices.path, "Sandbox", method, *args)
    assert done.rc != 0 and ("NotAuthorised" in done.error or "NotFound" in done.error or
                             "may" in done.error or "not" in done.error), str(done)
    assert alices.state == "running"


def test_ls_does_not_show_those_of_others(alices):
    assert alices.id not in wd_as(BOB, "ls").text
    every = wd_as(BOB, "ls", "--all")
    assert alices.id not in every.text and every.rc in (0, 6), str(every)
    assert alices.id not in wd_as(EVE, "ls").text


def test_rm_all_of_a_user_means_their_own(alices):
    mine = wd_as(BOB, "create", "--json", *tiny()).json["id"]
    assert wd_as(BOB, "rm", "--all").rc == 0
    left = set(listed())
    assert alices.id in left and mine not in left


def test_images_are_for_administrators(users):
    for args in (["image", "build", "base"], ["image", "rm", "base"]):
        done = wd_as(ALICE, *args)
        assert done.rc == 6 and done.err, str(done)
    assert "base" in wd_ok("image", "ls").text


def test_a_name_may_be_used_by_two_users_without_confusion(alices):
    taken = wd_as(BOB, "create", "--json", *tiny(), "--name", "wdtest-alices")
    if taken.rc == 0:  # names are each user's own
        sandbox = Sandbox(taken.json)
        try:
            assert wd_as(BOB, "inspect", "--json", "wdtest-alices").json["id"] == sandbox.id
            assert wd_as(ALICE, "inspect", "--json", "wdtest-alices").json["id"] == alices.id
        finally:
            sandbox.remove()
    else:
        assert taken.rc == 4, str(taken)


# ---- by other ways

@pytest.mark.target
@pytest.mark.parametrize("user", [BOB, EVE])
def test_control_sockets_are_out_of_reach(alices, user):
    path = host.CONTROL / f"{alices.id}.sock"
    assert path.is_socket()
    script = ("import socket, sys\n"
              "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
              "s.connect(sys.argv[1])")
    done = run(sys.executable, "-c", script, path, user=user)
    assert done.rc != 0 and "PermissionError" in done.error, str(done)


@pytest.mark.target
@pytest.mark.parametrize("user", [ALICE, EVE])
def test_files_of_sandboxes_are_out_of_reach(alices, user):
    for path in (host.STATE, alices.directory / "disk.qcow2", alices.directory / "console.log",
                 host.STATE / "state.db", host.STATE / "images"):
        assert run("cat", path, user=user).rc != 0
        assert run("ls", path, user=user).rc != 0


@pytest.mark.target
def test_processes_of_sandboxes_are_out_of_reach(alices):
    for pid in host.unit_pids(alices.unit):
        for file in ("environ", "mem", "fd", "maps", "root"):
            assert run("sh", "-c", f"cat /proc/{pid}/{file} || ls /proc/{pid}/{file}/",
                       user=EVE).rc != 0
        assert run("kill", "-0", pid, user=ALICE).rc != 0
        assert run("kill", "-9", pid, user=EVE).rc != 0
    assert alices.usable()


def test_units_of_sandboxes_are_roots(alices):
    for verb in ("stop", "kill", "restart"):
        assert run("systemctl", verb, "--no-ask-password", alices.unit, user=ALICE).rc != 0
    assert run("systemctl", "set-property", "--no-ask-password", "--runtime", alices.unit,
               "MemoryMax=infinity", user=ALICE).rc != 0
    assert alices.usable()


def test_the_bus_name_is_not_for_the_taking(users):
    script = ("import sys; sys.path.insert(0, sys.argv[1])\n"
              "from support.bus import Bus\n"
              "print(Bus().request_name('dev.workdir1'))")
    tests = pathlib.Path(__file__).parent.parent
    done = run(sys.executable, "-c", script, tests, user=EVE)
    assert done.rc == 0 and int(done.text) < 0, str(done)


@pytest.mark.parametrize("args", [
    ["Create", "a{sv}", "1", "no-such", "s", "x"],
    ["Create", "a{sv}", "1", "owner_uid", "u", "0"],
    ["Create", "s", "x"],
    ["Get", "s", "../../../etc/passwd"],
    ["Get", "s", "x" * 100_000],
    ["List", "a{sv}", "1", "all", "b", "true"],
    ["List", "a{sv}", "1", "all", "s", "true"],
    ["InspectImage", "s", "../../../etc"],
    ["BuildImage", "sa{sv}", "../../../tmp/evil", "0"],
    ["RemoveImage", "sa{sv}", "base", "0"],
    ["RemoveImage", "sa{sv}", "../../sandboxes", "0"],
], ids=lambda args: args[0])
@pytest.mark.parametrize("user", [BOB, EVE])
def test_a_hostile_local_user_gets_errors(alices, user, args):
    done = bus_as(user, "/dev/workdir1", "Manager", *args)
    assert done.rc != 0 and done.err, str(done)
    assert alices.id not in done.text + done.error


def test_a_user_who_makes_many_is_stopped_by_their_limit(users):
    before = len(listed())
    with host.configured("[limits]\nmax_sandboxes_per_user = 1\n"):
        mine = wd_as(BOB, "create", "--json", *tiny())
        assert mine.rc == 0, str(mine)
        try:
            more = wd_as(BOB, "create", *tiny())
            assert more.rc == 7 and "limits.max_sandboxes_per_user" in more.error, str(more)
        finally:
            wd_ok("rm", mine.json["id"])
    assert len(listed()) == before


def test_a_member_removed_from_the_group_loses_access(alices):
    assert wd_as(ALICE, "inspect", alices.id).rc == 0
    must("gpasswd", "-d", ALICE, "workdir")
    try:
        assert wd_as(ALICE, "exec", alices.id, "--", "true").rc == 125
        assert wd_as(ALICE, "create", *tiny()).rc == 6
    finally:
        must("usermod", "-aG", "workdir", ALICE)


def test_secrets_of_one_user_are_not_in_what_another_sees(alices):
    secret = "hunter3-0cc175b9c0f1b6a8"
    with started("runuser", "-u", ALICE, "--", "sh", "-c",
                 f'exec wd exec --env "TOKEN=$0" {alices.id} -- sh -c "echo ready; sleep 1000"',
                 secret) as client:
        read_until(client.stdout, b"ready")
        everything = json.dumps(listed())
        for pid in host.unit_pids(alices.unit):
            everything += run("cat", f"/proc/{pid}/cmdline").out.decode(errors="replace")
        assert secret not in everything


daemon_may_restart = True
