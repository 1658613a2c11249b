#!/usr/bin/python3
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Unit tests of images/initramfs/build: what it packs, and that it packs the same each time."""

import hashlib
import json
import pathlib
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(__file__).resolve().parents[2] / "images/initramfs/build"


def elf(interpreter):
    """A 64-bit ELF header with one program header: PT_INTERP or PT_LOAD."""
    ident = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 3 if interpreter else 1, 4, 0, 0, 0, 0, 0, 1)
    return ident + header + segment + b"agent"


def unpack(data):
    """{name: (mode, uid, gid, mtime, content, rdev)} of a newc archive (cpio(5))."""
    entries, offset = {}, 0
    while True:
        assert data[offset:offset + 6] == b"070701"
        fields = [int(data[offset + 6 + 8 * i:offset + 14 + 8 * i], 16) for i in range(13)]
        name = data[offset + 110:offset + 109 + fields[11]].decode()
        offset += (110 + fields[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            return entries
        content = data[offset:offset + fields[6]]
        offset += (fields[6] + 3) // 4 * 4
        entries[name] = (fields[1], fields[2], fields[3], fields[5], content,
                         (fields[9], fields[10]))


class Initramfs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = pathlib.Path(scratch.name)
        self.agent = self.top / "agent"
        self.agent.write_bytes(elf(interpreter=False))

    def build(self, *more, out="out"):
        command = [sys.executable, "-B", BUILD, "--agent", self.agent, "--out", self.top / out]
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    def test_contents(self):
        self.assertEqual(self.build().returncode, 0)
        entries = unpack((self.top / "out/initramfs.cpio").read_bytes())
        self.assertEqual(set(entries), {"dev", "dev/console", "init", "newroot", "proc", "sys"})
        self.assertTrue(all(entry[1:4] == (0, 0, 0) for entry in entries.values()))
        self.assertEqual(entries["init"][0], stat.S_IFREG | 0o755)
        self.assertEqual(entries["init"][4], self.agent.read_bytes())
        self.assertEqual(entries["dev/console"][0], stat.S_IFCHR | 0o600)
        self.assertEqual(entries["dev/console"][5], (5, 1))
        # A directory comes before what is in it: the kernel makes them in this order.
        names = list(entries)
        self.assertLess(names.index("dev"), names.index("dev/console"))

    def test_the_same_agent_gives_the_same_bytes(self):
        self.build(out="one")
        other = self.top / "copy"
        other.write_bytes(self.agent.read_bytes())
        other.chmod(0o700)
        self.agent = other
        self.build(out="two")
        self.assertEqual((self.top / "one/initramfs.cpio").read_bytes(),
                         (self.top / "two/initramfs.cpio").read_bytes())

    def test_guest_json(self):
        vmlinux = self.top / "vmlinux"
        vmlinux.write_bytes(b"\x7fELF...Linux version 6.1.0-workdir (x@y) (gcc)...")
        result = self.build("--vmlinux", vmlinux, "--agent-version", "0.1.0")
        self.assertEqual(result.returncode, 0, result.stderr)
        told = json.loads((self.top / "out/guest.json").read_text())
        cpio = (self.top / "out/initramfs.cpio").read_bytes()
        self.assertEqual(told["kernel_release"], "6.1.0-workdir")
        self.assertEqual(told["agent_version"], "0.1.0")
        self.assertEqual(told["vmlinux_sha256"], hashlib.sha256(vmlinux.read_bytes()).hexdigest())
        self.assertEqual(told["initramfs_sha256"], hashlib.sha256(cpio).hexdigest())

    def test_what_cannot_be_process_1_is_refused(self):
        self.agent.write_bytes(elf(interpreter=True))
        self.assertIn("dynamically linked", self.build().stderr)
        self.agent.write_bytes(b"#!/bin/sh\n")
        self.assertIn("not a 64-bit ELF", self.build().stderr)
        self.assertFalse((self.top / "out/initramfs.cpio").exists())


if __name__ == "__main__":
    unittest.main()
