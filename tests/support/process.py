"""Running programs and waiting for things.

Nothing here measures: deadlines only keep a hang from stopping the whole run, and are longer in
the test VM, which is slow (WD_TEST_TARGET=testvm, set by the suite).
"""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import time

IN_TESTVM = os.environ.get("WD_TEST_TARGET") == "testvm"
SLOW = 10 if IN_TESTVM else 1


@dataclasses.dataclass
class Result:
    argv: list
    rc: int
    out: bytes
    err: bytes

    @property
    def text(self):
        return self.out.decode()

    @property
    def error(self):
        return self.err.decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.out)

    def __str__(self):
        command = shlex.join(str(a)[:80] for a in self.argv)
        return f"{command}: exit {self.rc}\nstdout: {self.out[-2000:]!r}\nstderr: {self.error[-2000:]}"


def run(*argv, stdin=b"", timeout=120, user=None, **popen):
    """Runs a program to its end, whatever its exit status. `user`: as that user."""
    argv = [str(a) if not isinstance(a, bytes) else a for a in argv]
    if user:
        argv = ["runuser", "-u", user, "--", *argv]
    feed = {"stdin": stdin} if not isinstance(stdin, bytes) else {"input": stdin}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout * SLOW, check=False,
                              **feed, **popen)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"still running after {late.timeout:.0f} s: {argv[:8]}\n"
                             f"stdout: {(late.stdout or b'')[-500:]!r}\n"
                             f"stderr: {(late.stderr or b'')[-500:]!r}") from late
    return Result(argv, done.returncode, done.stdout, done.stderr)


def must(*argv, **kwargs):
    """run(), and it has to succeed."""
    result = run(*argv, **kwargs)
    assert result.rc == 0, str(result)
    return result


def wd(*args, **kwargs):
    return run("wd", *args, **kwargs)


def wd_ok(*args, **kwargs):
    return must("wd", *args, **kwargs)


def wd_fails(*args, rc=None, **kwargs):
    """wd, which has to fail, with a message on stderr and nothing on stdout."""
    result = run("wd", *args, **kwargs)
    assert result.rc != 0, f"succeeded: {result}"
    if rc is not None:
        assert result.rc == rc, str(result)
    assert result.err.strip(), f"no message: {result}"
    assert b"terminate called" not in result.err and b"Assertion" not in result.err, str(result)
    return result


def eventually(probe, timeout=30, what=""):
    """Waits until probe() is true (or stops raising AssertionError); returns its value."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        last = None
        try:
            last = probe()
            if last:
                return last
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'condition'} not met after {timeout * SLOW:.0f} s; "
                                 f"last: {last!r}")
        time.sleep(0.05)


@contextlib.contextmanager
def started(*argv, **popen):
    """A program in the background; killed at the end if it still runs."""
    popen.setdefault("stdin", subprocess.DEVNULL)
    popen.setdefault("stdout", subprocess.PIPE)
    popen.setdefault("stderr", subprocess.PIPE)
    process = subprocess.Popen([str(a) for a in argv], **popen)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def finish(process, timeout=60):
    """Waits for a started() program: its Result."""
    try:
        out, err = process.communicate(timeout=timeout * SLOW)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"still running: {process.args[:8]}") from late
    return Result(list(process.args), process.returncode, out or b"", err or b"")


def read_until(stream, mark, timeout=60):
    """Reads bytes from an unbuffered pipe until `mark` has come; returns all of them."""
    fd = stream.fileno()
    os.set_blocking(fd, False)
    data = bytearray()

    def probe():
        with contextlib.suppress(BlockingIOError):
            piece = os.read(fd, 65536)
            assert piece or mark in data, f"end of file before {mark!r}: {bytes(data)!r}"
            data.extend(piece)
        return mark in data

    eventually(probe, timeout, f"{mark!r} in the output")
    os.set_blocking(fd, True)
    return bytes(data)
