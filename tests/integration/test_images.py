"""Images: list, inspect, build, remove, and builds that are killed."""

import contextlib
import os
import pathlib
import signal

import pytest

from support import host, leaks
from support.bus import Bus, BusError
from support.process import eventually, finish, must, run, started, wd, wd_fails, wd_ok
from support.sandbox import temporary, tiny

daemon_may_restart = True

RECIPES = pathlib.Path("/usr/share/workdir/images")
NAME = "wdtest-mini"


def recipe(text):
    """A recipe of the tests' own, for as long as the context lasts."""
    @contextlib.contextmanager
    def present():
        folder = RECIPES / NAME
        folder.mkdir()
        (folder / "recipe.toml").write_text(text)
        try:
            yield
        finally:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
    return present()


@pytest.fixture
def mini():
    with recipe('description = "Almost nothing"\nsuite = "bookworm"\nsize = "700M"\n'
                'packages = []\n'):
        yield NAME


def image(name):
    return next((entry for entry in wd_ok("image", "ls", "--json").json
                 if entry["name"] == name), None)


def versions(name):
    """What there is of an image on disk, unfinished things included."""
    return sorted(leaks._names(host.STATE / "images" / name))


def test_ls_and_inspect(target):
    entry = image("base")
    assert entry["latest"] and entry["version"]
    assert 0 < entry["allocated_bytes"] <= entry["size_bytes"]
    assert "base" in wd_ok("image", "ls").text
    seen = wd_ok("image", "inspect", "--json", "base").json
    assert seen["suite"] == "bookworm" and "python3" in " ".join(seen["packages"])
    assert (pathlib.Path(seen["path"]) / "root.raw").exists() or os.path.isfile(seen["path"])


def test_the_base_image_has_what_people_expect(sandbox):
    tools = "bash git curl python3 ps ip tar cat update-ca-certificates"
    sandbox.sh(f"for tool in {tools}; do command -v $tool || exit 1; done")
    sandbox.sh("command -v nano || command -v vim || command -v vi")
    assert 'VERSION_ID="12"' in sandbox.sh("cat /etc/os-release")
    assert sandbox.sh("git -C /workspace init -q t && rm -r /workspace/t && echo fine") == "fine"


def test_unknown_and_wild_names(target):
    for verb in ("inspect", "rm", "build"):
        assert "wdtest-none" in wd_fails("image", verb, "wdtest-none", rc=3).error
        for wild in ("../base", "a" * 300, "", "a/b", "\x1b[31m", "."):
            done = wd("image", verb, "--", wild)
            assert done.rc in (2, 3) and b"\x1b" not in done.err, str(done)


def test_an_image_in_use_is_not_removed(sandbox):
    done = wd_fails("image", "rm", "base", rc=5)
    assert sandbox.id in done.error
    assert image("base")


def test_build_use_rebuild_and_remove(mini):
    wd_ok("image", "build", mini, timeout=600)
    first = image(mini)
    assert first["latest"] and first["users"] == 0
    assert wd_ok("image", "inspect", "--json", mini).json["version"] == first["version"]
    with temporary(*tiny(), "--image", mini) as sandbox:
        assert 'ID=debian' in sandbox.sh("cat /etc/os-release")
        assert sandbox.sh("test -d /workspace && pwd") == "/workspace"
        assert image(mini)["users"] == 1
        done = wd_fails("image", "rm", mini, rc=5)
        assert sandbox.id in done.error
        wd_ok("stop", sandbox.id)
        assert sandbox.id in wd_fails("image", "rm", mini, rc=5).error
    wd_ok("image", "rm", mini)
    assert image(mini) is None and versions(mini) == []


def test_a_bad_recipe_says_what_is_wrong(target):
    with recipe('suite = "bookworm"\npackages = ["bash"]\nsiez = "1G"\n'):
        done = wd_fails("image", "build", NAME)
    assert "siez" in done.error
    assert image(NAME) is None and versions(NAME) == []


def test_a_build_that_fails_says_why_and_leaves_nothing(target):
    before = leaks.snapshot()
    with recipe('suite = "bookworm"\nsize = "700M"\npackages = ["no-such-package-wdtest"]\n'):
        done = wd_fails("image", "build", NAME, timeout=600)
    assert "no-such-package-wdtest" in done.error
    eventually(lambda: not leaks.left_over(before))


@contextlib.contextmanager
def a_build_under_way(name):
    """A build that has begun to write: its unit and the client that waits for it."""
    with started("wd", "image", "build", name) as client:
        unit = eventually(lambda: [u for u in host.units("workdir-*")
                                   if "image" in u and name in u] or
                          client.poll() is not None and pytest.fail(str(finish(client))))[0]
        eventually(lambda: host.processes("mmdebstrap") or len(host.unit_pids(unit)) > 1, 120)
        yield unit, client


@pytest.mark.parametrize("how", ["kill the builder", "kill the unit", "stop the unit", "cancel",
                                 "interrupt wd"])
def test_a_killed_build_leaves_nothing(mini, how):
    before = leaks.snapshot()
    with a_build_under_way(mini) as (unit, client):
        if how == "kill the builder":
            os.kill(host.main_pid(unit), signal.SIGKILL)
        elif how == "kill the unit":
            must("systemctl", "kill", "--signal=KILL", unit)
        elif how == "stop the unit":
            must("systemctl", "stop", unit)
        elif how == "cancel":
            cancel_the_only_job()
        else:
            client.send_signal(signal.SIGINT)
        done = finish(client)
    assert done.rc != 0 and done.err, str(done)
    eventually(lambda: not leaks.left_over(before), 60, "nothing left of the build")
    assert image(mini) is None


def cancel_the_only_job():
    tree = must("busctl", "tree", "--list", "dev.workdir1").text.split()
    jobs = [path for path in tree if path.startswith("/dev/workdir1/job/")]
    with Bus() as bus:
        cancelled = 0
        for job in jobs:
            try:
                bus.call(job, "Job", "Cancel")
                cancelled += 1
            except BusError:
                continue  # an earlier one, kept for its result
        assert cancelled == 1


def test_a_build_outlives_workdird(mini):
    with a_build_under_way(mini) as (unit, client):
        host.kill_daemon()
        assert host.unit_property(unit, "ActiveState") == "active"
        finish(client)
    eventually(lambda: image(mini), 600, "the build has ended and is known")
    eventually(lambda: run("systemctl", "is-active", unit).rc != 0)
    wd_ok("image", "rm", mini)
