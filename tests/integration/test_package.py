"""The packages' life cycle: what is installed, upgraded under running sandboxes, removed, purged.

WD_TEST_DEBS and WD_TEST_DEBS_UPGRADE: directories with the packages under test and with the same
built again as a newer version."""

import grp
import os
import pathlib
import shutil

import pytest

from support import host
from support.process import eventually, finish, must, read_until, run, wd, wd_ok
from support.sandbox import create, listed, tiny

daemon_may_restart = True

KEPT_IMAGES = pathlib.Path("/var/tmp/wdtest-images-kept")


def debs(variable):
    directory = os.environ.get(variable)
    assert directory, f"{variable} is not set: the runner has to tell where the packages are"
    found = sorted(pathlib.Path(directory).glob("workdir*_*.deb"))
    found = [deb for deb in found if "dbgsym" not in deb.name]
    assert len(found) == 2, found
    return found


def apt(*args):
    return must("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120", *args, timeout=600,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def installed_version():
    return must("dpkg-query", "-W", "-f", "${Version}", "workdir").text


# ---- installed

@pytest.mark.target
def test_the_service_is_enabled_and_running(target):
    assert run("systemctl", "is-enabled", "workdird.service").text.strip() == "enabled"
    assert run("systemctl", "is-active", "workdird.service").text.strip() == "active"
    assert not must("systemctl", "list-units", "--failed", "--plain", "--no-legend",
                    "workdir*").text


@pytest.mark.target
def test_the_packages_are_whole(target):
    changed = run("dpkg", "--verify", "workdir", "workdir-guest").text.splitlines()
    # A configuration file is the administrator's to change, and in the test VM the suite does.
    assert [line for line in changed if f" c {host.CONFIG}" not in line] == []
    for package in ("workdir", "workdir-guest"):
        for line in must("dpkg", "-L", package).text.splitlines():
            path = pathlib.Path(line)
            if not path.is_file():
                continue  # a folder of other packages; documentation left out on small systems
            assert path.stat().st_uid == 0 and not path.stat().st_mode & 0o022, path


def test_the_group_is_there_and_empty_and_no_user_is(target):
    grp.getgrnam("workdir")
    assert run("getent", "passwd", "workdir").rc == 2


def test_man_pages_and_completions_are_installed(target):
    files = must("dpkg", "-L", "workdir").text
    for page in ("man1/wd.1", "man8/workdird.8", "man5/workdird.toml.5", "man5/dev.workdir1.5",
                 "bash-completion/completions/wd", "zsh", "fish"):
        assert page in files, page


# ---- changed: last of all

@pytest.mark.target_only
@pytest.mark.last
class TestLifeCycle:
    def test_1_upgrade_leaves_running_sandboxes_alone(self):
        wd("rm", "--force", "wdtest-upgrade")  # and the old version: of a first try
        apt("install", "--allow-downgrades", *debs("WD_TEST_DEBS"))
        eventually(host.daemon_answers)
        sandbox = create(*tiny(), "--name", "wdtest-upgrade")
        old_version, old_daemon = installed_version(), host.daemon_pid()
        before = (sandbox.shim_pid, sandbox.qemu_pid,
                  host.unit_property(sandbox.unit, "InvocationID"))
        with sandbox.start("sh", "-c", "echo ready; while [ ! -e /tmp/go ]; do sleep 0.2; done; "
                                       "seq 1000; exit 6") as client:
            read_until(client.stdout, b"ready")
            apt("install", *debs("WD_TEST_DEBS_UPGRADE"))
            assert installed_version() != old_version
            assert host.daemon_pid() not in (0, old_daemon), "workdird runs the old version"
            assert before == (sandbox.shim_pid, sandbox.qemu_pid,
                              host.unit_property(sandbox.unit, "InvocationID"))
            sandbox.sh("touch /tmp/go")
            done = finish(client)
        assert (done.rc, done.out.split()[-1]) == (6, b"1000")
        wd_ok("stop", sandbox.id)
        wd_ok("start", sandbox.id)
        assert sandbox.usable()
        wd_ok("rm", sandbox.id)
        new = create(*tiny())
        assert new.usable()
        wd_ok("rm", new.id)

    def test_2_a_changed_configuration_survives_an_upgrade(self):
        text = host.CONFIG.read_text() + "\n# wdtest: mine\n"
        with host.configured(text):
            apt("install", "--reinstall", "-o", "Dpkg::Options::=--force-confold",
                *debs("WD_TEST_DEBS_UPGRADE"))
            assert host.CONFIG.read_text() == text
            assert host.daemon_answers()

    def test_3_remove_ends_sandboxes_and_keeps_their_disks(self):
        sandbox = create(*tiny())
        sandbox.sh("echo kept > /root/file; sync")
        apt("remove", "workdir", "workdir-guest")
        assert not host.units("workdir-sb-*")
        assert not host.processes("workdird", "workdir-shim", "qemu-system-x86_64")
        assert shutil.which("wd") is None
        assert run("busctl", "status", "dev.workdir1").rc != 0
        assert sandbox.directory.exists() and host.CONFIG.exists()
        apt("install", *debs("WD_TEST_DEBS_UPGRADE"))
        eventually(host.daemon_answers)
        assert listed()[sandbox.id]["state"] in ("stopped", "failed")
        wd_ok("start", sandbox.id)
        assert sandbox.sh("cat /root/file") == "kept"
        wd_ok("rm", sandbox.id)

    def test_4_purge_leaves_nothing(self):
        sandbox = create(*tiny())
        must("cp", "-a", "--sparse=always", host.STATE / "images", KEPT_IMAGES)
        try:
            apt("purge", "workdir", "workdir-guest")
            assert not host.units("workdir*")
            for path in (host.STATE, host.RUNTIME, host.CONFIG.parent,
                         pathlib.Path("/usr/lib/workdir"), pathlib.Path("/usr/share/workdir"),
                         pathlib.Path("/etc/systemd/system/multi-user.target.wants/workdird.service")):
                assert not path.exists(), path
            left = must("find", "/etc", "/usr", "/var/lib", "/lib/systemd", "/run", "-xdev", "-name",
                        "*workdir*", "-not", "-path", "/usr/local/*", "-not", "-path",
                        "/run/workdir-dev*", "-not", "-name", "wdtest*").text.split()
            assert not [p for p in left if "/apt/" not in p and "deb-systemd" not in p], left
            assert run("systemctl", "cat", "workdird.service").rc != 0
            assert sandbox.unit not in must("systemctl", "list-units", "--all").text
        finally:
            apt("install", *debs("WD_TEST_DEBS"))
            eventually(host.daemon_answers)
            must("sh", "-c", f"mkdir -p {host.STATE}/images && cp -a --sparse=always "
                             f"{KEPT_IMAGES}/. {host.STATE}/images/ && rm -r {KEPT_IMAGES}")
            host.restart_daemon()
        assert listed() == {}
        new = create(*tiny())
        assert new.usable() and wd("rm", new.id).rc == 0
