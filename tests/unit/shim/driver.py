"""Plays workdird for workdir-shim: the control socket, Launch, sessions. Standard library only."""

import array
import collections
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import tempfile
import termios
import time

HELLO, SETUP, READY, FAILED, SHUTDOWN, PING, PONG, QUIESCE, QUIESCED = range(1, 10)
(OPEN, OPENED, OPEN_FAILED, DATA, EOF, CREDIT, SIGNAL, EXIT, DETACH, CLOSE,
 ERROR) = range(0x10, 0x1b)
IN, OUT, ERR = range(3)
WINDOW = 512 * 1024
HEADER = struct.Struct("<IIBBH")

Frame = collections.namedtuple("Frame", "channel type flag payload")


def frame(channel, kind, flag=0, payload=b""):
    return HEADER.pack(channel, len(payload), kind, flag, 0) + payload


def fields(*values):
    """A message of wire/message.hpp: ints, bytes and lists of bytes, in the order of their tags."""
    out = b""
    for tag, value in enumerate(values, 1):
        for item in value if isinstance(value, list) else [value]:
            raw = struct.pack("<Q", item) if isinstance(item, int) else item
            out += struct.pack("<BI", tag, len(raw)) + raw
    return out


def parse_fields(payload):
    """{tag: [raw values]}"""
    out = collections.defaultdict(list)
    while payload:
        tag, length = struct.unpack_from("<BI", payload)
        out[tag].append(payload[5:5 + length])
        payload = payload[5 + length:]
    return out


def number(message, tag):
    return struct.unpack("<Q", message[tag][0])[0]


class FrameStream:
    """Frames over a connected stream socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = bytearray()

    def send(self, *args, **kwargs):
        self.sock.sendall(frame(*args, **kwargs))

    def receive(self, timeout=120):
        """The next frame; None at the end of the stream."""
        deadline = time.monotonic() + timeout
        while True:
            if len(self.buffer) >= HEADER.size:
                channel, length, kind, flag, zero = HEADER.unpack_from(self.buffer)
                assert zero == 0 and length <= 65536
                if len(self.buffer) >= HEADER.size + length:
                    payload = bytes(self.buffer[HEADER.size:HEADER.size + length])
                    del self.buffer[:HEADER.size + length]
                    return Frame(channel, kind, flag, payload)
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.buffer += data

    def expect(self, kind, timeout=120):
        got = self.receive(timeout)
        assert got is not None and got.type == kind, (hex(kind), got)
        return got


class Shim:
    """One workdir-shim process."""

    def __init__(self, binary, **popen):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "control")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(self.folder.name, "notify"))
        self.notify.setblocking(False)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(8)
        environment = {k: v for k, v in os.environ.items() if k != "JOURNAL_STREAM"}
        environment["NOTIFY_SOCKET"] = os.path.join(self.folder.name, "notify")
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen([binary], stdin=listener, stderr=self.stderr,
                                        env=environment, **popen)
        listener.close()
        self.log = tempfile.TemporaryFile(buffering=0)
        self.control = None
        self.statuses = []

    def connect(self):
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400000)
        self.control.connect(self.path)
        return self

    def request(self, fds=(), **message):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([json.dumps(message).encode()], ancillary)

    def wait_until_read(self, timeout=60):
        """The shim has taken all requests from the socket (SIOCOUTQ, unix(7))."""
        until = time.monotonic() + timeout
        while struct.unpack("i", fcntl.ioctl(self.control, termios.TIOCOUTQ, bytes(4)))[0] > 0:
            assert time.monotonic() < until, "the shim does not read its requests"
            time.sleep(0.01)

    def event(self, op=None, timeout=120):
        """The next event; with `op`, the next of that name (what comes before it is dropped)."""
        while True:
            self.control.settimeout(timeout)
            text = self.control.recv(1 << 18)
            if not text:
                raise EOFError("the control connection was closed")
            message = json.loads(text)
            if op is None or message["op"] == op:
                return message

    def launch(self, qemu, kernel, initrd, layers=(), **changes):
        """layers: (fd, qcow2, read_only)"""
        log_fd = os.open(f"/proc/self/fd/{self.log.fileno()}", os.O_RDWR | os.O_APPEND)
        message = dict(op="launch", accel="tcg", qemu=qemu, cpus=1, memory_bytes=256 << 20,
                       restore=False,
                       layers=[dict(qcow2=q, read_only=r) for _, q, r in layers],
                       hostname="box", machine_id="0" * 32, env=["A=1"], boot_timeout_ms=60000,
                       probe=False)
        message.update(changes)
        self.request([log_fd, kernel, initrd] + [fd for fd, _, _ in layers], **message)
        os.close(log_fd)

    def session(self, argv=(b"true",), env=(), cwd=b"", user=b"", timeout_ms=0, raw=None,
                sndbuf=None):
        ours, theirs = socket.socketpair()
        if sndbuf:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
        request = os.memfd_create("request")
        payload = raw if raw is not None else fields(list(argv), list(env), cwd, user, timeout_ms)
        os.write(request, payload)
        self.request([theirs.fileno(), request], op="open_session")
        theirs.close()
        os.close(request)
        return FrameStream(ours)

    def status(self):
        """All STATUS= and other notifications so far."""
        while True:
            try:
                self.statuses.append(self.notify.recv(4096).decode())
            except BlockingIOError:
                return self.statuses

    def wait(self, timeout=120):
        return self.process.wait(timeout)

    def stderr_text(self):
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")

    def console_log(self):
        self.log.seek(0)
        return self.log.read()

    def rss_kib(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
        return 0

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.control:
            self.control.close()
        self.notify.close()
        self.folder.cleanup()


class Exec:
    """A client of one session that reads all output, granting credit as it goes."""

    def __init__(self, stream):
        self.stream = stream
        self.out = {OUT: bytearray(), ERR: bytearray()}
        self.end = None

    def run(self, stdin=b"", timeout=180, keep=True):
        """Sends stdin and collects until the last frame, which is returned."""
        stream = self.stream
        stream.sock.setblocking(False)
        pending = bytearray(frame(0, CREDIT, OUT, struct.pack("<I", WINDOW)) +
                            frame(0, CREDIT, ERR, struct.pack("<I", WINDOW)))
        left = memoryview(stdin)
        credit = 0
        eof_sent = False
        self.received = 0
        used = {OUT: 0, ERR: 0}
        deadline = time.monotonic() + timeout
        while self.end is None:
            while credit and len(left) and len(pending) < 1 << 18:
                chunk = left[:min(credit, 32 * 1024 - 12)]
                left = left[len(chunk):]
                credit -= len(chunk)
                pending += frame(0, DATA, IN, bytes(chunk))
            if not len(left) and not eof_sent:
                eof_sent = True
                pending += frame(0, EOF, IN)
            ready = select.select([stream.sock], [stream.sock] if pending else [], [],
                                  max(0, deadline - time.monotonic()))
            assert ready[0] or ready[1], "no progress"
            if ready[1]:
                try:
                    del pending[:stream.sock.send(pending)]
                except (BrokenPipeError, ConnectionResetError):
                    pending.clear()
            if ready[0]:
                data = stream.sock.recv(1 << 18)
                if not data:
                    return None
                stream.buffer += data
            at = 0
            while len(stream.buffer) - at >= HEADER.size:
                _, length, kind, flag, _ = HEADER.unpack_from(stream.buffer, at)
                if len(stream.buffer) - at < HEADER.size + length:
                    break
                body = at + HEADER.size
                if kind == DATA:
                    if keep:
                        self.out[flag] += stream.buffer[body:body + length]
                    self.received += length
                    used[flag] += length
                    if used[flag] >= WINDOW // 2:
                        pending += frame(0, CREDIT, flag, struct.pack("<I", used[flag]))
                        used[flag] = 0
                elif kind == CREDIT:
                    credit += struct.unpack_from("<I", stream.buffer, body)[0]
                elif kind in (EXIT, OPEN_FAILED, ERROR):
                    self.end = Frame(0, kind, flag, bytes(stream.buffer[body:body + length]))
                at = body + length
            del stream.buffer[:at]
        return self.end


def memfd(content=b"", name="file"):
    fd = os.memfd_create(name)
    os.write(fd, content)
    return fd
