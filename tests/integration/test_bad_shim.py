"""A shim in the wrong hands: what it says may end its own sandbox, and nothing it does may keep it."""

import contextlib
import pathlib
import textwrap

import pytest

from support import host, leaks
from support.process import eventually, must, wd, wd_fails
from support.sandbox import tiny

SHIM = pathlib.Path("/usr/lib/workdir/workdir-shim")

# Standard input is the control socket that listens, as for the real one (control/message.hpp).
LIES = """\
    #!/usr/bin/python3 -IS
    import json, os, socket, time
    listener = socket.socket(fileno=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"].replace("@", "\\0", 1))
    peer, _ = listener.accept()
    def say(**message):
        peer.send(json.dumps(message).encode())
    say(op="hello", version=1, state="launching", sessions=0)
    peer.recv(65536)
    for _ in range(3):
        say(op="ended", reason="vmm-crash", detail="its last word", limit=0, peak=0,
            console_tail="", was_ready=False)
    {after}
    time.sleep(600)
    """


@contextlib.contextmanager
def shim_that(after, directory):
    script = directory / "shim"
    script.write_text(textwrap.dedent(LIES).format(after=after))
    script.chmod(0o755)
    must("mount", "--bind", str(script), str(SHIM))
    try:
        yield
    finally:
        must("umount", str(SHIM))


@pytest.mark.parametrize("after", ["pass", "peer.close()"], ids=["stays", "hangs up"])
def test_a_shim_that_says_it_has_ended_and_does_not_is_killed(after, tmp_path):
    before = leaks.snapshot()
    pid = host.daemon_pid()
    with shim_that(after, tmp_path):
        done = wd_fails("create", *tiny(), rc=10)
    assert "its last word" in done.error, str(done)
    eventually(lambda: not leaks.left_over(before), 30, "nothing left of it")
    assert host.daemon_pid() == pid and wd("ls").rc == 0
