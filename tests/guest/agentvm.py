# SPDX-License-Identifier: AGPL-3.0-or-later
"""A guest started by hand: QEMU on a command line, and the agent's protocol spoken raw.

For tests of the agent alone and for the benchmark's raw floor: no workdird, no shim. The frame and
message formats are those of src/wire/*.hpp. Standard library only.
"""

import ctypes
import functools
import mmap
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

HELLO, SETUP, READY, FAILED, SHUTDOWN, PING, PONG = range(0x01, 0x08)
OPEN, OPENED, OPEN_FAILED, DATA, EOF, CREDIT, SIGNAL, EXIT, DETACH, CLOSE = range(0x10, 0x1A)
IN, OUT, ERR = range(3)
HEADER = struct.Struct("<IIBBH")
MAX_PAYLOAD = 64 * 1024
DATA_CHUNK = 32 * 1024 - HEADER.size
WINDOW = 512 * 1024

EXITED, SIGNALED, TIMEOUT = range(3)
FAILURE_KINDS = ("other", "not_executable", "not_found", "unreachable", "violation", "limit")


@functools.cache
def tsc_khz():
    """Frequency of this machine's time stamp counter, which under TCG is the guest's too."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # rdtsc; shl rdx, 32; or rax, rdx; ret
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def sample():
        """(ns, ticks) at one moment: of several tries the one that was not interrupted."""
        tries = []
        for _ in range(20):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            ticks = rdtsc()
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            tries.append((after - before, (before + after) / 2, ticks))
        return min(tries)[1:]

    begin = sample()
    time.sleep(0.1)
    end = sample()
    del code  # the function is not called again
    return round((end[1] - begin[1]) / (end[0] - begin[0]) * 1e6)


def tcg_clock():
    """Kernel arguments that give a guest under TCG a clock. microvm has nothing to calibrate the
    TSC with, and left alone Linux counts timer interrupts, of which a busy host loses many."""
    khz = tsc_khz()
    return f"tsc=reliable tsc_early_khz={khz} lpj={khz * 4} no_timer_check"


class Gone(Exception):
    """QEMU ended, or its end of the channel did."""


class Late(Exception):
    """A deadline passed."""


def field(tag, value):
    if isinstance(value, int):
        value = struct.pack("<Q", value)
    elif isinstance(value, str):
        value = os.fsencode(value)
    return struct.pack("<BI", tag, len(value)) + value


def fields(payload):
    """{tag: [bytes, …]}"""
    out = {}
    while payload:
        tag, length = struct.unpack_from("<BI", payload)
        out.setdefault(tag, []).append(payload[5 : 5 + length])
        payload = payload[5 + length :]
    return out


def number(message, tag):
    return struct.unpack("<Q", message[tag][0])[0]


def frame(channel, kind, flag=0, payload=b""):
    return HEADER.pack(channel, len(payload), kind, flag, 0) + payload


def exec_request(argv, env=(), cwd="", user="", timeout_ms=0):
    out = b"".join(field(1, a) for a in argv) + b"".join(field(2, e) for e in env)
    return out + field(3, cwd) + field(4, user) + field(5, timeout_ms)


class Failure(Exception):
    def __init__(self, payload):
        message = fields(payload)
        self.kind = FAILURE_KINDS[number(message, 1)]
        self.errnum = number(message, 2)
        self.message = os.fsdecode(message[3][0])
        super().__init__(f"{self.kind} (errno {self.errnum}): {self.message}")


class Channel:
    """One exec. Output collects in .out and .err; credit is granted anew as it comes, unless
    grant=False."""

    def __init__(self, vm, number, grant=True):
        self.vm = vm
        self.id = number
        self.grant = grant
        self.pid = None
        self.failure = None
        self.status = None  # (kind, value)
        self.cpu_us = self.peak_bytes = None
        self.output = {OUT: bytearray(), ERR: bytearray()}
        self.counts = {OUT: 0, ERR: 0}
        self.keep = True
        self.ended = {IN: False, OUT: False, ERR: False}
        self.in_credit = 0
        self.owed = {OUT: 0, ERR: 0}

    out = property(lambda self: bytes(self.output[OUT]))
    err = property(lambda self: bytes(self.output[ERR]))
    over = property(lambda self: self.status is not None or self.failure is not None)

    def handle(self, kind, flag, payload):
        if kind == OPENED:
            self.pid = number(fields(payload), 1)
            if self.grant:
                self.credit(OUT, WINDOW)
                self.credit(ERR, WINDOW)
        elif kind == OPEN_FAILED:
            self.failure = Failure(payload)
        elif kind == DATA:
            assert not self.ended[flag], "data after eof"
            self.counts[flag] += len(payload)
            if self.keep:
                self.output[flag] += payload
            if self.grant:
                self.owed[flag] += len(payload)
                if self.owed[flag] >= WINDOW // 4:
                    self.credit(flag, self.owed[flag])
                    self.owed[flag] = 0
        elif kind == EOF:
            self.ended[flag] = True
        elif kind == CREDIT:
            self.in_credit += struct.unpack("<I", payload)[0]
            assert self.in_credit <= WINDOW, "granted beyond the window"
        elif kind == EXIT:
            message = fields(payload)
            self.status = (number(message, 1), number(message, 2))
            self.cpu_us = number(message, 3)
            self.peak_bytes = number(message, 4)
        else:
            raise AssertionError(f"a frame of type {kind:#x} on a channel")

    def credit(self, stream, count):
        self.vm.send(frame(self.id, CREDIT, stream, struct.pack("<I", count)))

    def send_input(self, data, timeout=60, end=True):
        """All of it, against credit. Stops early when the agent says nobody reads, or at the end."""
        view = memoryview(data)
        while len(view):
            self.vm.until(lambda: self.in_credit or self.ended[IN] or self.over, timeout)
            if self.ended[IN] or self.over:
                return len(data) - len(view)
            n = min(len(view), self.in_credit, DATA_CHUNK)
            self.in_credit -= n
            self.vm.send(frame(self.id, DATA, IN, bytes(view[:n])))
            view = view[n:]
        if end:
            self.end_input()
        return len(data)

    def end_input(self):
        self.vm.send(frame(self.id, EOF, IN))

    def kill(self, number_):
        self.vm.send(frame(self.id, SIGNAL, 0, bytes([number_])))

    def wait(self, timeout=60):
        self.vm.until(lambda: self.over, timeout)
        self.vm.channels.pop(self.id, None)
        if self.failure:
            raise self.failure
        return self.status


class Vm:
    pass_fds = ()  # for a class that adds devices

    def __init__(self, kernel, initramfs, disk=None, memory="512M", cpus=2, accel="tcg",
                 qemu="qemu-system-x86_64", append="", argv=None):
        self.folder = tempfile.mkdtemp(prefix="agentvm-")
        self.console_path = os.path.join(self.folder, "console")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock = ours
        self.argv = argv or self.command_line(kernel, initramfs, disk, memory, cpus, accel, qemu,
                                              append, theirs.fileno())
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.argv, pass_fds=[theirs.fileno(), *self.pass_fds],
                                        stdin=subprocess.DEVNULL)
        theirs.close()
        ours.setblocking(False)
        self.buffer = bytearray()
        self.pending = bytearray()
        self.channels = {}
        self.next_channel = 1
        self.control = []  # (type, payload) not taken yet
        self.hello = None

    def command_line(self, kernel, initramfs, disk, memory, cpus, accel, qemu, append, fd):
        # Without an RTC the kernel spins on its registers for a second or more (with kvmclock it
        # does not look).
        rtc, cpu = "off", "host"
        if accel == "tcg":
            # TCG runs `rep movsb`, which Linux takes for copies on a CPU with ERMS, byte by byte;
            # without that flag it copies by words and a pipe is two to three times as fast.
            rtc, cpu = "on", "max,-erms"
            append = f"{tcg_clock()} {append}"
        argv = [qemu, "-M", f"microvm,accel={accel},rtc={rtc},acpi=off,isa-serial=on,"
                "suppress-vmdesc=on", "-cpu", cpu, "-smp", str(cpus), "-m", memory,
                "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
                "-chardev", f"file,id=console,path={self.console_path}", "-serial",
                "chardev:console", "-kernel", kernel, "-initrd", initramfs, "-append",
                f"console=ttyS0 reboot=t panic=-1 quiet {append}".strip(),
                "-device", "virtio-serial-device", "-chardev", f"socket,id=agent,fd={fd}",
                "-device", "virtserialport,chardev=agent,name=dev.workdir.agent"]
        if disk:
            driver = "qcow2" if disk.endswith(".qcow2") else "raw"
            argv += ["-blockdev", f"driver=file,node-name=f0,filename={disk},discard=unmap",
                     "-blockdev", f"driver={driver},node-name=d0,file=f0,discard=unmap",
                     "-device", "virtio-blk-device,drive=d0"]
        return argv

    # ---- the channel

    def send(self, data):
        self.pending += data
        self.flush()

    def flush(self):
        try:
            n = self.sock.send(self.pending[:256 * 1024])
            del self.pending[:n]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.pending.clear()  # pump() finds out

    def pump(self, timeout):
        """One turn: sends what goes, handles what came. False when nothing happened."""
        want = [self.sock] if self.pending else []
        readable, writable, _ = select.select([self.sock], want, [], timeout)
        if writable:
            self.flush()
        if readable:
            try:
                data = self.sock.recv(256 * 1024)
            except BlockingIOError:
                data = None
            except ConnectionError:
                data = b""
            if data == b"":
                raise Gone(self.console())
            if data:
                self.buffer += data
                self.dispatch()
        return bool(readable or writable)

    def dispatch(self):
        at = 0
        while len(self.buffer) - at >= HEADER.size:
            channel, length, kind, flag, zero = HEADER.unpack_from(self.buffer, at)
            assert length <= MAX_PAYLOAD and zero == 0, (channel, length, kind, flag, zero)
            if len(self.buffer) - at < HEADER.size + length:
                break
            payload = bytes(self.buffer[at + HEADER.size : at + HEADER.size + length])
            at += HEADER.size + length
            if channel == 0:
                self.control.append((kind, payload))
            elif channel in self.channels:
                self.channels[channel].handle(kind, flag, payload)
        del self.buffer[:at]

    def until(self, done, timeout=60):
        deadline = time.monotonic() + timeout
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late(f"not within {timeout} s; console:\n{self.console()}")
            self.pump(left)

    def take(self, *kinds, timeout=60):
        found = []

        def look():
            for i, (kind, _) in enumerate(self.control):
                if kind in kinds:
                    found.append(self.control.pop(i))
                    return True
            return False

        self.until(look, timeout)
        return found[0]

    # ---- its life

    def wait_hello(self, timeout=60):
        self.hello = fields(self.take(HELLO, timeout=timeout)[1])
        return self.hello

    def setup(self, timeout=60, **changes):
        values = {"version": 1, "root_device": "vda", "realtime_ns": time.time_ns(),
                  "random": os.urandom(64), "hostname": "box", "machine_id": "0123456789abcdef" * 2,
                  "env": ["SETUP_VAR=setup"]}
        values.update(changes)
        payload = b"".join(field(i, values[k]) for i, k in enumerate(
            ("version", "root_device", "realtime_ns", "random", "hostname", "machine_id"), 1))
        payload += b"".join(field(7, e) for e in values["env"])
        self.send(frame(0, SETUP, 0, payload))
        kind, answer = self.take(READY, FAILED, timeout=timeout)
        if kind == FAILED:
            raise Failure(answer)
        answer = fields(answer)
        return {"mount_ms": number(answer, 1) / 1e6, "identity_ms": number(answer, 2) / 1e6,
                "root_bytes": number(answer, 3)}

    def boot(self, **changes):
        self.wait_hello()
        return self.setup(**changes)

    def ping(self, payload=b"x", timeout=60):
        begin = time.monotonic()
        self.send(frame(0, PING, 0, payload))
        assert self.take(PONG, timeout=timeout)[1] == payload
        return time.monotonic() - begin

    def open(self, argv, grant=True, **options):
        channel = Channel(self, self.next_channel, grant)
        self.next_channel += 1
        self.channels[channel.id] = channel
        request = exec_request(argv, **options)
        pieces = [request[i : i + MAX_PAYLOAD] for i in range(0, len(request), MAX_PAYLOAD)]
        for i, piece in enumerate(pieces):
            self.send(frame(channel.id, OPEN, int(i + 1 < len(pieces)), piece))
        return channel

    def run(self, argv, stdin=b"", timeout=60, **options):
        """To its end; the channel."""
        channel = self.open(argv, **options)
        self.until(lambda: channel.pid or channel.over, timeout)
        if not channel.over:
            channel.send_input(stdin, timeout)
        channel.wait(timeout)
        return channel

    def sh(self, script, **options):
        return self.run(["sh", "-c", script], **options)

    def shutdown(self, timeout=30):
        """Seconds until QEMU was gone."""
        begin = time.monotonic()
        self.send(frame(0, SHUTDOWN))
        try:
            self.until(lambda: False, timeout)
        except Gone:
            pass
        self.process.wait(timeout)
        return time.monotonic() - begin

    def console(self):
        try:
            with open(self.console_path, "rb") as file:
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.sock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
