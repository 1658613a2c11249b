#!/usr/bin/python3
"""Stands in for QEMU: finds the inherited sockets in its arguments, and then does what the "kernel"
says, which is a piece of Python from the test."""

import json
import os
import re
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import driver
from driver import *  # the scenarios use its names


def chardev(name):
    for word in sys.argv:
        found = re.fullmatch(rf"socket,id={name},fd=(\d+)", word)
        if found:
            return socket.socket(fileno=int(found.group(1)))
    raise SystemExit(f"no chardev {name}")


class Qmp:
    def __init__(self):
        self.sock = chardev("qmp")
        self.lines = self.sock.makefile("rb")

    def send(self, message):
        self.sock.sendall((json.dumps(message) + "\r\n").encode())

    def greet(self):
        self.send({"QMP": {"version": {"qemu": {"micro": 1, "minor": 2, "major": 7},
                                       "package": ""}, "capabilities": []}})
        self.answer("qmp_capabilities")

    def answer(self, command, error=None):
        got = json.loads(self.lines.readline())
        assert got["execute"] == command, got
        if error:
            self.send({"id": got["id"], "error": {"class": "GenericError", "desc": error}})
        else:
            self.send({"id": got["id"], "return": {}})

    def event(self, name, **data):
        self.send({"timestamp": {"seconds": 1, "microseconds": 2}, "event": name, "data": data})


qmp = Qmp()
console = chardev("console")
agent = FrameStream(chardev("agent"))


def hello(oldest=1, newest=1):
    agent.send(0, HELLO, payload=fields(oldest, newest, b"0.1", b"6.1.0", 1_000_000, 3_000_000))


def boot():
    """Up to the agent's ready; returns the Setup it got."""
    qmp.greet()
    hello()
    payload = b""
    while True:
        piece = agent.expect(SETUP)
        payload += piece.payload
        if not piece.flag:
            break
    agent.send(0, READY, payload=fields(5_000_000, 1_000_000, 1 << 30))
    return parse_fields(payload)


def accept():
    """Takes one open; returns (channel, request). What a session before still had to say is
    passed over."""
    payload = b""
    while True:
        piece = agent.receive()
        if piece.type in (CREDIT, EOF):
            continue
        assert piece.type == OPEN, piece
        payload += piece.payload
        if not piece.flag:
            break
    agent.send(piece.channel, OPENED, payload=fields(77))
    return piece.channel, parse_fields(payload)


def power_off(reason="guest-reset"):
    qmp.event("SHUTDOWN", guest=True, reason=reason)
    sys.exit(0)


def forever():
    while True:
        signal.pause()


kernel = sys.argv[sys.argv.index("-kernel") + 1]
with open(kernel) as scenario:
    exec(compile(scenario.read(), "scenario", "exec"))
