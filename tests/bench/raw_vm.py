"""The raw floor: the very command line of a running sandbox's QEMU, started by hand, with the least
that is needed to get its agent to `ready` and to talk to it. No unit, no shim, no workdird."""

import fcntl
import os
import re
import selectors
import socket
import struct
import subprocess
import tempfile
import threading
import time

from support.process import must
from support.session import WINDOW, Channel, Type, fields

FD_IN_ARGUMENT = re.compile(r"(?:\bfd=|/proc/self/fd/)(\d+)")

PLAIN_PORT = "/dev/vport0p2"


def piped_to(dd, end):
    return ["sh", "-c", f"{' '.join(dd)} | dd {end} bs=32k status=none"]


def text_field(tag, value):
    return struct.pack("<BI", tag, len(value)) + value


def number_field(tag, value):
    return text_field(tag, struct.pack("<Q", value))


def setup_message():
    """wire::Setup."""
    return (number_field(1, 1) + text_field(2, b"vda") + number_field(3, time.time_ns()) +
            text_field(4, os.urandom(64)) + text_field(5, b"bench") + text_field(6, b"b" * 32))


class RawVm:
    def __init__(self, qemu_pid, extra_port=False):
        """Prepares all that `workdird` prepares as well: this is not part of the floor."""
        self.argv = open(f"/proc/{qemu_pid}/cmdline", "rb").read().decode().split("\0")[:-1]
        self._folder = tempfile.TemporaryDirectory(prefix="wdbench-", dir="/var/tmp")
        self._fds, self._sockets = {}, {}
        for argument in self.argv:
            for number in map(int, FD_IN_ARGUMENT.findall(argument)):
                if number not in self._fds:
                    self._fds[number] = self._open(qemu_pid, number, argument)
        if extra_port:
            here, there = socket.socketpair()
            self._sockets["plain"] = here
            # A number that is none of those on the command line.
            fd = fcntl.fcntl(there, fcntl.F_DUPFD, 200)
            there.close()
            self.argv += ["-chardev", f"socket,id=plain,fd={fd}",
                          "-device", "virtserialport,chardev=plain,name=wdbench.plain"]
            self._fds[fd] = fd

    def _open(self, qemu_pid, number, argument):
        path = f"/proc/{qemu_pid}/fd/{number}"
        if "mem-path=" in argument or "set=100" in argument:  # its memory, and for its state
            fd = os.memfd_create("bench")
            os.ftruncate(fd, os.stat(path).st_size)
            return fd
        if "set=" in argument:
            # QEMU has moved it elsewhere: the layers of the disk, the last one writable.
            sets = map(int, re.findall(r"\bset=(\d+)", " ".join(self.argv)))
            last = max(number for number in sets if number < 100)
            name = "disk.qcow2" if f"set={last}" in argument else "root.raw"
            path = next(f"/proc/{qemu_pid}/fd/{fd}" for fd in os.listdir(f"/proc/{qemu_pid}/fd")
                        if os.readlink(f"/proc/{qemu_pid}/fd/{fd}").endswith("/" + name))
            number = int(path.rsplit("/", 1)[1])
        target = os.readlink(path)
        if target.startswith("socket:"):
            here, there = socket.socketpair()
            self._sockets[re.search(r"id=(\w+)", argument)[1]] = here
            return there.detach()
        with open(f"/proc/{qemu_pid}/fdinfo/{number}", encoding="ascii") as info:
            flags = int(re.search(r"flags:\s+(\d+)", info.read())[1], 8)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return os.open(path, os.O_RDONLY)
        info = must("qemu-img", "info", "--force-share", "--output=json", target).json
        disk = os.path.join(self._folder.name, "disk.qcow2")
        must("qemu-img", "create", "-q", "-f", "qcow2", "-o",
             f"cluster_size={info['cluster-size']}", disk, info["virtual-size"])
        return os.open(disk, os.O_RDWR)

    def boot(self):
        """Seconds from exec of QEMU to the agent's hello, and to its ready."""
        # The numbers on the command line stay what they are: each fd is moved to its own.
        high = {number: os.dup2(fd, 500 + number, inheritable=False) and 500 + number
                for number, fd in self._fds.items()}

        def place():
            for number, fd in high.items():
                os.dup2(fd, number, inheritable=True)

        begin = time.monotonic()
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, preexec_fn=place,
                                        close_fds=False)
        for fd in high.values():
            os.close(fd)
        threading.Thread(target=self._drain, daemon=True).start()
        self.agent = Channel(self._sockets["agent"])
        assert self.agent.receive()[1] == Type.hello
        hello = time.monotonic() - begin
        self.agent.send(Type.setup, payload=setup_message())
        answer = self.agent.receive()
        assert answer[1] == Type.ready, answer
        return hello, time.monotonic() - begin

    def _drain(self):
        """The console and QMP are read and thrown away."""
        with selectors.DefaultSelector() as selector:
            for name in ("console", "qmp"):
                if name in self._sockets:
                    selector.register(self._sockets[name], selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    try:
                        if not key.fileobj.recv(65536):
                            selector.unregister(key.fileobj)
                    except OSError:
                        return

    def ping(self):
        begin = time.perf_counter()
        self.agent.send(Type.ping, payload=b"x" * 8)
        answer = self.agent.receive()
        assert answer[1] == Type.pong
        return time.perf_counter() - begin

    def start(self, argv, channel):
        request = b"".join(text_field(1, word.encode()) for word in argv)
        self.agent.send(Type.open, 0, request, channel)
        for stream in (1, 2):
            self.agent.credit(stream, WINDOW, channel)

    def wait_exit(self, channel):
        while (frame := self.agent.receive()) is not None:
            if frame[0] == channel and frame[1] in (Type.exit, Type.open_failed):
                assert frame[1] == Type.exit, fields(frame[3])
                return
        raise AssertionError("the guest is gone")

    def exec(self, argv, channel=1):
        begin = time.perf_counter()
        self.start(argv, channel)
        self.wait_exit(channel)
        return time.perf_counter() - begin

    def plain_out(self, size, piped=False):
        """Bytes per second of a plain copy from the guest, by dd through a port of its own.
        `piped`: from another program by way of a pipe, as the output of any command has to go."""
        copy = ["dd", "if=/dev/zero", "bs=32k", f"count={size // 32768}", "status=none"]
        begin = time.perf_counter()
        self.start(piped_to(copy, f"of={PLAIN_PORT}") if piped else [*copy, f"of={PLAIN_PORT}"], 2)
        left = size
        while left:
            left -= len(self._sockets["plain"].recv(min(left, 256 * 1024)))
        rate = size / (time.perf_counter() - begin)
        self.wait_exit(2)
        return rate

    def plain_in(self, size, piped=False):
        copy = ["dd", f"if={PLAIN_PORT}", "bs=32k", "iflag=fullblock", f"count={size // 32768}",
                "status=none"]
        begin = time.perf_counter()
        self.start(piped_to(copy, "of=/dev/null") if piped else [*copy, "of=/dev/null"], 2)
        piece = b"\0" * 262144
        for _ in range(size // len(piece)):
            self._sockets["plain"].sendall(piece)
        self.wait_exit(2)
        return size / (time.perf_counter() - begin)

    def close(self):
        self.process.kill()
        self.process.wait()
        for fd in self._fds.values():
            os.close(fd)
        for each in self._sockets.values():
            each.close()
        self._folder.cleanup()
