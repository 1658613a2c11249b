"""A configuration that is wrong stops workdird from starting, with the reason, and nothing else."""

import pytest

from support import host
from support.process import eventually, finish, must, read_until, run, wd_fails, wd_ok
from support.sandbox import listed, tiny

daemon_may_restart = True

BAD = {
    "malformed": ("[limits]\nmax_cpus = = 3\n", 2, ""),
    "not closed": ('[vmm]\n\nqemu = "/usr/bin\n', 3, ""),
    "unknown key": ("[limits]\nmax_cups = 3\n", 2, "limits.max_cups"),
    "unknown section": ("# a comment\n[limit]\nmax_cpus = 3\n", 2, "limit"),
    "wrong type": ('[limits]\nmax_cpus = "3"\n', 2, "limits.max_cpus"),
    "out of range": ("[limits]\nmax_cpus = 0\n", 2, "limits.max_cpus"),
    "no size": ('[defaults]\ncpus = 1\nmemory = "lots"\n', 3, "defaults.memory"),
    "no word": ('[vmm]\naccel = "turbo"\n', 2, "vmm.accel"),
    "relative path": ('[guest]\nkernel = "vmlinux"\n', 2, "guest.kernel"),
    "twice": ('[vmm]\naccel = "tcg"\naccel = "kvm"\n', 3, ""),
    "control characters": ("[limits]\n\"max\\u001b[31m\" = 1\n", 2, "limits."),
}


@pytest.fixture(scope="module")
def bystander(no_leaks):
    """A sandbox and an exec in it that run all the while."""
    from support.sandbox import temporary
    with temporary(*tiny()) as sandbox:
        yield sandbox


def test_a_bad_configuration_is_refused_with_file_line_and_key(bystander):
    invocation = host.unit_property(bystander.unit, "InvocationID")
    with bystander.start("sh", "-c", "echo ready; read line; echo $line; exit 5",
                         stdin=-1) as client:
        read_until(client.stdout, b"ready")
        with host.configured(host.CONFIG.read_text() if host.CONFIG.exists() else ""):
            for name, (text, line, key) in BAD.items():
                journal = host.Journal("-u", "workdird.service")
                host.write_config(text)
                assert run("systemctl", "restart", "workdird.service").rc != 0, name
                said = journal.text()
                assert f"{host.CONFIG}:{line}" in said and key in said, f"{name}: {said}"
                assert "\x1b[31m" not in said, name
                assert "terminate called" not in said and "dumped core" not in said, said
            assert host.unit_property(bystander.unit, "InvocationID") == invocation
            assert client.poll() is None
        client.stdin.write(b"still here\n")
        client.stdin.flush()
        done = finish(client)
    assert (done.rc, done.out.strip()) == (5, b"still here")
    assert listed()[bystander.id]["state"] == "running"
    assert bystander.usable()


def test_wd_says_where_to_look_while_workdird_does_not_start(target):
    with host.configured("" if not host.CONFIG.exists() else host.CONFIG.read_text()):
        host.write_config("nonsense\n")
        run("systemctl", "restart", "workdird.service")
        error = wd_fails("ls", timeout=90).error
    assert "workdird" in error


def test_no_configuration_is_a_valid_one(bystander):
    text = host.CONFIG.read_text() if host.CONFIG.exists() else ""
    with host.configured(text):
        if host.CONFIG.exists():
            host.CONFIG.unlink()
        host.restart_daemon()
        assert bystander.usable()
        host.write_config(text)


def test_the_installed_configuration_says_what_the_defaults_are(target):
    """Each key that the file shows as a comment is one that workdird knows."""
    lines = host.CONFIG.read_text().splitlines()
    shown = [line.lstrip("# ") for line in lines
             if line.startswith(("#", "[")) and ("=" in line or line.lstrip("# ").startswith("["))]
    shown = [line for line in shown if line.startswith("[") or line.split("=")[0].strip().isidentifier()]
    assert shown
    with host.configured("\n".join(shown) + "\n"):
        assert host.daemon_answers()


def test_defaults_are_used(target):
    with host.configured('[defaults]\nmemory = "192M"\ncpus = 2\ndisk = "3G"\n'):
        from support.sandbox import temporary
        with temporary() as sandbox:
            seen = sandbox.inspect()
    assert (seen["memory_bytes"], seen["cpus"], seen["disk_bytes"]) == (192 << 20, 2, 3 << 30)


def test_a_create_waits_in_the_queue_when_boots_are_limited(target):
    from concurrent.futures import ThreadPoolExecutor
    from support.sandbox import create
    with host.configured("[limits]\nparallel_boots = 1\n"):
        with ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda _: create(*tiny()), range(3)))
        queued = sorted(sandbox.report["timings_ms"]["queue"] for sandbox in made)
        wd_ok("rm", *[sandbox.id for sandbox in made])
    assert queued[0] < queued[1] < queued[2], queued
    eventually(lambda: not {s.id for s in made} & set(listed()))
    must("systemctl", "is-active", "workdird.service")
