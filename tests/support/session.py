"""A session without wd: frames as in src/wire/frame.hpp over the descriptor that Exec returns."""

import enum
import socket
import struct

HEADER = struct.Struct("<IIBBH")
WINDOW = 512 * 1024
DATA_CHUNK = 32 * 1024 - HEADER.size


class Type(enum.IntEnum):
    hello = 0x01
    setup = 0x02
    ready = 0x03
    failed = 0x04
    shutdown = 0x05
    ping = 0x06
    pong = 0x07
    open = 0x10
    opened = 0x11
    open_failed = 0x12
    data = 0x13
    eof = 0x14
    credit = 0x15
    signal = 0x16
    exit = 0x17
    detach = 0x18
    close = 0x19
    error = 0x1a


STDIN, STDOUT, STDERR = 0, 1, 2


def pack(kind, flag=0, payload=b"", channel=0):
    return HEADER.pack(channel, len(payload), kind, flag, 0) + payload


def fields(payload):
    """{tag: value} of a message as in src/wire/message.hpp; integers stay 8 bytes."""
    out, at = {}, 0
    while at < len(payload):
        tag, length = struct.unpack_from("<BI", payload, at)
        out[tag] = payload[at + 5:at + 5 + length]
        at += 5 + length
    return out


class Channel:
    """Frames over a stream socket."""

    def __init__(self, stream, timeout=60):
        self.socket = stream
        self.socket.settimeout(timeout)
        self._buffer = bytearray()

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, kind, flag=0, payload=b"", channel=0):
        self.socket.sendall(pack(kind, flag, payload, channel))

    def receive(self):
        """(channel, type, flag, payload); None at end of file."""
        while True:
            if len(self._buffer) >= HEADER.size:
                channel, length, kind, flag, _ = HEADER.unpack_from(self._buffer)
                end = HEADER.size + length
                if len(self._buffer) >= end:
                    payload = bytes(self._buffer[HEADER.size:end])
                    del self._buffer[:end]
                    return channel, kind, flag, payload
            try:
                piece = self.socket.recv(256 * 1024)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            self._buffer += piece

    def credit(self, stream, count, channel=0):
        self.send(Type.credit, stream, struct.pack("<I", count), channel)


def open_exec(bus, sandbox, argv, **options):
    fd = bus.call(sandbox.path, "Sandbox", "Exec", "asa{sv}", list(argv), options)
    return Channel(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fd))


def run_session(session):
    """Reads a session to its end: (stdout, stderr, fields of exit), granting credit as it goes."""
    out = {STDOUT: bytearray(), STDERR: bytearray()}
    for stream in out:
        session.credit(stream, WINDOW)
    while (frame := session.receive()) is not None:
        _, kind, flag, payload = frame
        if kind == Type.data:
            out[flag] += payload
            session.credit(flag, len(payload))
        elif kind == Type.exit:
            return bytes(out[STDOUT]), bytes(out[STDERR]), fields(payload)
        elif kind in (Type.error, Type.open_failed):
            raise AssertionError(f"{Type(kind).name}: {fields(payload)}")
    raise AssertionError("session ended without exit")
