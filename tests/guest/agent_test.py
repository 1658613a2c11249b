#!/usr/bin/python3
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The agent in a guest of its own, without workdird or a shim.

Run where the packages are installed and the image base is there (a devbox):
`python3 tests/guest/agent_test.py [unittest arguments]`. The image is not changed. Most tests share
one guest; those that end or break it have their own.
"""

import glob
import hashlib
import os
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from agentvm import (CLOSE, CREDIT, DATA, DETACH, ERR, EXITED, EXIT, IN, OPEN, OUT, PONG, SIGNALED, TIMEOUT,
                     WINDOW, Channel, Failure, Vm, exec_request, frame)

KERNEL = "/usr/lib/workdir/guest/vmlinux"
INITRAMFS = "/usr/lib/workdir/guest/initramfs.cpio"
# Any version will do: raw ext4 with Debian's essential packages and python3.
ROOT = next(iter(glob.glob("/var/lib/workdir/images/base/*/root.raw")), "")


def new_disk(folder, size="4G"):
    path = os.path.join(folder, "disk.qcow2")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b",
                    ROOT, path, size], check=True)
    return path


class GuestCase(unittest.TestCase):
    """A guest for the whole class."""

    options = {}
    changes = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="agent-test-")
        cls.disk = new_disk(cls.folder.name)
        cls.start()

    @classmethod
    def start(cls):
        cls.vm = Vm(KERNEL, INITRAMFS, cls.disk, **cls.options)
        try:
            cls.ready = cls.vm.boot(**cls.changes)
        except BaseException:
            print(cls.vm.console())
            cls.vm.close()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.vm.close()
        cls.folder.cleanup()

    def out(self, script, **options):
        channel = self.vm.sh(script, **options)
        self.assertEqual(channel.status, (EXITED, 0), channel.err)
        return channel.out.decode().strip()

    def agent_rss_kib(self):
        # Not /proc/1/status: its counters lag behind by up to 64 pages a thread (SPLIT_RSS).
        return int(re.search(r"Rss:\s+(\d+)", self.out("cat /proc/1/smaps_rollup")).group(1))

    def count(self, pattern):
        """Processes whose command line matches, by what /proc says."""
        script = ("import os,re\nn=0\nfor p in os.listdir('/proc'):\n if p.isdigit():\n  try:"
                  " c=open(f'/proc/{p}/cmdline','rb').read().replace(b'\\0',b' ')\n"
                  "  except OSError: continue\n  n+=bool(re.search(rb'%s',c)) and int(p)!="
                  "os.getpid()\nprint(n)" % pattern)
        return int(self.vm.run(["python3", "-c", script]).out)


class Basics(GuestCase):
    def test_output_and_status(self):
        channel = self.vm.sh("echo out; echo err >&2; exit 7")
        self.assertEqual((channel.out, channel.err), (b"out\n", b"err\n"))
        self.assertEqual(channel.status, (EXITED, 7))
        self.assertTrue(channel.ended[OUT] and channel.ended[ERR])
        self.assertGreater(channel.cpu_us, 0)
        self.assertGreater(channel.peak_bytes, 0)

    def test_signal_status(self):
        self.assertEqual(self.vm.sh("kill -TERM $$").status, (SIGNALED, signal.SIGTERM))

    def test_argv_is_untouched(self):
        args = ["a b", "$HOME", "'\"`", "", "new\nline", "☕", "\\", "*"]
        channel = self.vm.run(["python3", "-c", "import sys; print(sys.argv[1:])", *args])
        self.assertEqual(channel.out.decode().strip(), repr(args))

    def test_environment(self):
        out = self.out("env", env=["A=b=c", "EMPTY=", "LANG=xx"])
        env = dict(line.split("=", 1) for line in out.splitlines())
        self.assertEqual(env["SETUP_VAR"], "setup")
        self.assertEqual((env["A"], env["EMPTY"], env["LANG"]), ("b=c", "", "xx"))
        self.assertEqual((env["HOME"], env["USER"], env["LOGNAME"]), ("/root", "root", "root"))
        self.assertTrue(env["PATH"].startswith("/usr/local/sbin:"))
        self.assertEqual(self.out("echo $SETUP_VAR", env=["SETUP_VAR=mine"]), "mine")

    def test_folder(self):
        self.assertEqual(self.out("pwd"), "/workspace")
        self.assertEqual(self.out("pwd", cwd="/usr/lib"), "/usr/lib")
        with self.assertRaises(Failure) as caught:
            self.vm.sh("true", cwd="/no/such")
        self.assertEqual(caught.exception.errnum, 2)
        self.assertIn("/no/such", caught.exception.message)

    def test_users(self):
        self.assertEqual(self.out("id -un; id -Gn", user="daemon"), "daemon\ndaemon")
        self.assertEqual(self.out("id -u; id -g; echo $HOME", user="1234"), "1234\n0\n/")
        self.assertEqual(self.out("id -u; id -g", user="1234:7"), "1234\n7")
        self.assertEqual(self.out("id -un; id -gn", user="nobody:tty"), "nobody\ntty")
        self.assertEqual(self.out("echo x > /dev/stdout", user="nobody"), "x")
        for user in ("stranger", "root:strangers", "-1", "4294967295"):
            with self.assertRaises(Failure) as caught:
                self.vm.sh("true", user=user)
            self.assertEqual(caught.exception.kind, "other")
        self.out("echo 'worker:x:500:500::/home/w:/bin/bash' >> /etc/passwd;"
                 "echo 'extra:x:501:a,worker,b' >> /etc/group")
        self.assertEqual(self.out("id -G; echo $HOME $SHELL $USER", user="worker"),
                         "500 501\n/home/w /bin/bash worker")

    def test_what_cannot_be_executed(self):
        cases = {
            ("no-such-program",): "not_found", ("/no/such",): "not_found", ("",): "not_found",
            ("/etc/passwd",): "not_executable", ("/etc",): "not_executable",
            ("/tmp/garbage",): "not_executable", ("/tmp/noloader",): "not_found",
        }
        self.out("echo '#!/no/interpreter' > /tmp/noloader; printf '\\1\\2\\3' > /tmp/garbage;"
                 "chmod +x /tmp/noloader /tmp/garbage")
        for argv, kind in cases.items():
            with self.assertRaises(Failure) as caught:
                self.vm.run(list(argv))
            self.assertEqual(caught.exception.kind, kind, argv)
        with self.assertRaises(Failure) as caught:
            self.vm.run(["/tmp/noloader"])
        self.assertIn("interpreter", caught.exception.message)

    def test_requests_beyond_limits(self):
        secret = "hunter2" * 30000
        for argv, env in ((["echo", secret], []), (["true"], ["A=" + secret]), ([], []),
                          (["a"], ["novalue"]), (["a\0b"], []), (["echo"] + ["x" * 100000] * 40, [])):
            with self.assertRaises(Failure) as caught:
                self.vm.run(argv, env=env)
            self.assertNotIn("hunter2", caught.exception.message)
        channel = self.vm.run(["sh", "-c", "echo ${#1}", "sh", "y" * (128 * 1024 - 1)])
        self.assertEqual(channel.out, b"131071\n")
        channel = self.vm.run(["sh", "-c", "echo $#", "sh"] + ["z" * 99990] * 10)
        self.assertEqual(channel.out, b"10\n")
        # Many small ones: pointers count too, but stay below a quarter of the stack.
        channel = self.vm.run(["sh", "-c", "echo $#", "sh"] + ["w"] * 100000)
        self.assertEqual(channel.out, b"100000\n")

    def test_a_request_given_up_half_way(self):
        self.vm.send(frame(8888, OPEN, 1, b"x" * 100) + frame(8888, CLOSE))
        channel = Channel(self.vm, 8888)
        self.vm.channels[8888] = channel
        self.vm.send(frame(8888, OPEN, 0, exec_request(["echo", "hi"])))
        self.assertEqual(channel.wait(), (EXITED, 0))

    def test_a_malformed_request(self):
        channel = Channel(self.vm, 9999)
        self.vm.channels[9999] = channel
        self.vm.send(frame(9999, OPEN, 0, b"\x01\xff\xff\xff\xff"))
        with self.assertRaises(Failure):
            channel.wait()

    def test_machine(self):
        self.assertEqual(self.out("hostname; cat /etc/hostname"), "box\nbox")
        self.assertEqual(self.out("getent hosts box"), "127.0.1.1       box")
        self.assertEqual(self.out("cat /etc/machine-id"), "0123456789abcdef" * 2)
        self.assertEqual(self.out("cat /proc/1/comm"), "init")
        before = time.time()
        seen = float(self.out("date +%s.%N"))
        self.assertTrue(before - 1 < seen < time.time() + 1, (before, seen, time.time()))
        self.out("ls /dev/fd/0 /dev/pts/ptmx; test -c /dev/null; test -w /dev/shm;"
                 "grep -q cgroup2 /proc/mounts; test -d /run; ip addr show lo | grep -q 127.0.0.1;"
                 "echo x | tee /dev/stderr; mkdir /tmp/d; rmdir /tmp/d")
        self.assertEqual(self.ready["root_bytes"], 4 << 30)
        size = int(self.out("df -B1 --output=size / | tail -1"))
        self.assertGreater(size, 3.7 * 2**30)
        self.assertEqual(self.out("cat /proc/self/oom_score_adj; ulimit -Sn; nice; umask;"
                                  "chrt -p $$ | grep -o 'SCHED_.*'"),
                         "0\n1024\n0\n0022\nSCHED_OTHER")
        self.assertEqual(self.out("grep SigBlk /proc/self/status; grep SigIgn /proc/self/status"),
                         "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000")

    def test_agent_memory(self):
        rss = self.agent_rss_kib()
        self.assertLess(rss, 2048)

    def test_descriptors_of_a_command(self):
        self.assertEqual(self.out("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3")  # 3: ls itself


class Streams(GuestCase):
    def test_stdin_to_stdout(self):
        for size in (0, 1, 4095, 65536, 65537, 10 << 20):
            data = os.urandom(size)
            channel = self.vm.run(["cat"], stdin=data)
            self.assertEqual(hashlib.sha256(channel.out).digest(), hashlib.sha256(data).digest())
        data = "☕".encode() * 100000
        self.assertEqual(self.vm.run(["cat"], stdin=data).out, data)

    def test_end_while_stdin_is_open(self):
        channel = self.vm.open(["echo", "hi"])
        self.assertEqual(channel.wait(), (EXITED, 0))
        self.assertEqual(channel.out, b"hi\n")

    def test_nobody_reads_stdin(self):
        channel = self.vm.open(["sh", "-c", "exec <&-; echo up; sleep 300"])
        self.vm.until(lambda: b"up" in channel.out)
        self.assertLess(channel.send_input(b"y\n" * (4 << 20)), 8 << 20)
        self.assertTrue(channel.ended[IN])
        channel.kill(signal.SIGKILL)
        self.assertEqual(channel.wait(), (SIGNALED, 9))
        channel = self.vm.run(["head", "-c", "5"], stdin=b"x" * (4 << 20))
        self.assertEqual(channel.out, b"xxxxx")

    def test_a_command_that_never_reads(self):
        channel = self.vm.open(["sleep", "1"])
        self.vm.until(lambda: channel.pid)
        channel.send_input(b"y\n" * (4 << 20), timeout=20)
        self.assertEqual(channel.wait(), (EXITED, 0))

    def test_output_before_the_end_is_whole(self):
        # More than the pipe holds, without credit until long after... the writer must wait; less
        # than it holds, and the writer is gone before the first byte is taken.
        for size in (1, 5000, 200000):
            channel = self.vm.open(["head", "-c", str(size), "/dev/zero"], grant=False)
            self.vm.until(lambda: channel.pid)
            time.sleep(0.3)
            self.assertFalse(channel.over)
            channel.grant = True
            channel.credit(OUT, WINDOW)
            self.assertEqual(channel.wait(), (EXITED, 0))
            self.assertEqual(len(channel.out), size)

    def test_order_between_main_and_background(self):
        for _ in range(20):
            channel = self.vm.sh("(while :; do echo bg; done) & echo main1; echo main2")
            self.assertEqual(channel.status, (EXITED, 0))
            lines = channel.out.split(b"\n")
            self.assertLess(lines.index(b"main1"), lines.index(b"main2"))
        self.vm.sh("kill -9 -1")

    def test_credit_is_respected(self):
        channel = self.vm.open(["head", "-c", "10M", "/dev/zero"], grant=False)
        self.vm.until(lambda: channel.pid)
        for step in (1, 1000, 100000):
            before = channel.counts[OUT]
            channel.credit(OUT, step)
            self.vm.until(lambda: channel.counts[OUT] == before + step)
            self.vm.ping()
            self.assertEqual(channel.counts[OUT], before + step)
        channel.grant = True
        channel.credit(OUT, WINDOW)
        self.assertEqual(channel.wait(), (EXITED, 0))
        self.assertEqual(channel.counts[OUT], 10 << 20)

    def test_a_stalled_reader_stalls_only_itself(self):
        stalled = self.vm.open(["cat", "/dev/zero"], grant=False)
        self.vm.until(lambda: stalled.pid)
        stalled.credit(OUT, WINDOW)
        self.vm.until(lambda: stalled.counts[OUT] == WINDOW)
        bulk = self.vm.open(["cat", "/dev/zero"])
        bulk.keep = False
        self.vm.until(lambda: bulk.counts[OUT] > 1 << 20)
        self.assertEqual(self.vm.sh("echo hi").out, b"hi\n")
        for _ in range(5):
            self.vm.ping()
        self.assertLess(self.agent_rss_kib(), 2048)
        for channel in (stalled, bulk):
            self.vm.send(frame(channel.id, CLOSE))
            self.vm.until(lambda: channel.over)
            self.assertEqual(channel.status[0], SIGNALED)

    def test_violations_close_only_their_channel(self):
        other = self.vm.open(["sleep", "300"])
        self.vm.until(lambda: other.pid)
        for bad in (lambda c: frame(c.id, DATA, IN, b"x" * 60000) * 40,
                    lambda c: frame(c.id, CREDIT, OUT, struct.pack("<I", WINDOW + 1)),
                    lambda c: frame(c.id, CREDIT, OUT, b""),
                    lambda c: frame(c.id, CREDIT, 9, struct.pack("<I", 1)),
                    lambda c: frame(c.id, DATA, OUT, b"x"),
                    lambda c: frame(c.id, 0x16, 0, b"\xff"),
                    lambda c: frame(c.id, 0x17, 0, b"")):
            channel = self.vm.open(["sleep", "300"], grant=False)
            self.vm.until(lambda: channel.pid)
            channel.in_credit = -1 << 30  # what bad() sends is not counted
            self.vm.send(bad(channel))
            self.assertEqual(channel.wait(), (SIGNALED, signal.SIGHUP))
        self.assertFalse(other.over)
        other.kill(9)
        other.wait()

    def test_many_at_once(self):
        channels = [self.vm.open(["sh", "-c", f"read x; echo {i} $x"]) for i in range(130)]
        for channel in channels:
            self.vm.until(lambda: channel.pid or channel.over, 120)
        for channel in channels:
            channel.send_input(b"in\n")
        for i, channel in enumerate(channels):
            self.assertEqual(channel.wait(), (EXITED, 0))
            self.assertEqual(channel.out.decode(), f"{i} in\n")

    def test_too_many(self):
        channels = [self.vm.open(["sleep", "600"]) for _ in range(256)]
        self.vm.until(lambda: all(c.pid or c.over for c in channels), 180)
        self.assertEqual([str(c.failure) for c in channels if c.failure], [])
        with self.assertRaises(Failure) as caught:
            self.vm.sh("true")
        self.assertEqual(caught.exception.kind, "limit")
        for channel in channels:
            channel.kill(9)
        self.vm.until(lambda: all(c.over for c in channels), 60)
        self.assertEqual(self.out("echo ok"), "ok")


class Ends(GuestCase):
    def test_background_does_not_hold_the_exec(self):
        channel = self.vm.sh("sleep 277 & echo started")  # within less than 277 s: see Vm.sh
        self.assertEqual(channel.out, b"started\n")
        self.assertEqual(self.count("sleep 277"), 1)
        # It goes on writing without SIGPIPE or blocking.
        self.vm.sh("(i=0; while [ $i -lt 100000 ]; do echo line $i; i=$((i+1)); done;"
                   " echo done > /tmp/bg) & echo x")
        for _ in range(100):
            if self.vm.sh("cat /tmp/bg").out == b"done\n":
                break
            time.sleep(0.1)
        else:
            self.fail("the background process stalled")
        self.vm.sh("pkill sleep")

    def test_timeout_ends_the_tree(self):
        begin = time.monotonic()
        channel = self.vm.sh("echo before; sleep 311 & sleep 311 & wait", timeout_ms=1000)
        self.assertEqual(channel.status[0], TIMEOUT)
        self.assertEqual(channel.out, b"before\n")
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.assertEqual(self.count("sleep 311"), 0)

    def test_timeout_ends_what_ignores_it(self):
        channel = self.vm.sh("trap '' TERM; (trap '' TERM HUP; setsid sleep 313) & "
                             "while :; do sleep 1; done", timeout_ms=500)
        self.assertEqual(channel.status, (TIMEOUT, 9))
        self.assertEqual(self.count("sleep 313"), 0)
        # The main process obeys, a grandchild does not: still none is left.
        channel = self.vm.sh("(trap '' TERM; sleep 317; sleep 317) & sleep 317", timeout_ms=500)
        self.assertEqual(channel.status[0], TIMEOUT)
        self.assertEqual(self.count("sleep 317"), 0)

    def test_timeout_not_reached(self):
        self.assertEqual(self.vm.sh("echo hi", timeout_ms=60000).status, (EXITED, 0))
        self.assertEqual(self.vm.sh("echo hi", timeout_ms=2**64 - 1).status, (EXITED, 0))

    def test_timeout_lets_it_clean_up(self):
        channel = self.vm.sh("trap 'echo cleaned; exit 3' TERM; while :; do sleep 0.1; done",
                             timeout_ms=500)
        self.assertEqual(channel.status, (TIMEOUT, 3))
        self.assertEqual(channel.out, b"cleaned\n")

    def test_signals_reach_the_group(self):
        channel = self.vm.open(["sh", "-c", "trap 'echo int' INT; sleep 331 & echo up; wait; wait"])
        self.vm.until(lambda: b"up" in channel.out)
        channel.kill(signal.SIGINT)
        self.vm.until(lambda: b"int" in channel.out)
        channel.kill(signal.SIGTERM)
        self.assertEqual(channel.wait(), (SIGNALED, signal.SIGTERM))
        self.assertEqual(self.count("sleep 331"), 0)

    def test_close(self):
        channel = self.vm.open(["sh", "-c", "trap '' HUP; echo up; while :; do sleep 1; done"])
        self.vm.until(lambda: b"up" in channel.out)
        begin = time.monotonic()
        self.vm.send(frame(channel.id, CLOSE))
        self.assertEqual(channel.wait(), (SIGNALED, 9))
        self.assertGreater(time.monotonic() - begin, 1.5, "it had no time to end by itself")

    def test_close_of_a_stopped_process(self):
        channel = self.vm.open(["sh", "-c", "echo up; kill -STOP $$"])
        self.vm.until(lambda: b"up" in channel.out)
        self.vm.send(frame(channel.id, CLOSE))
        self.assertEqual(channel.wait(10), (SIGNALED, signal.SIGHUP))

    def test_detach(self):
        channel = self.vm.open(["sh", "-c", "echo up; cat; i=0; while [ $i -lt 3000 ];"
                                " do echo $i; i=$((i+1)); done; echo fine > /tmp/detached"])
        self.vm.until(lambda: b"up" in channel.out)
        self.vm.send(frame(channel.id, DETACH))
        self.assertEqual(channel.wait(), (EXITED, 0))
        self.assertEqual(self.out("cat /tmp/detached"), "fine")

    def test_control_groups_go_away(self):
        for _ in range(5):
            self.vm.sh("true")
        self.vm.sh("sleep 0.5 & mkdir /sys/fs/cgroup/exec/*/below 2>/dev/null; true")
        deadline = time.monotonic() + 10
        while (left := int(self.out("ls -d /sys/fs/cgroup/exec/*/ | wc -l"))) > 1:
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.1)

    def test_orphans_are_reaped(self):
        self.vm.sh("for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 0.5")
        self.assertEqual(self.out("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"),
                         "0")


class Survival(GuestCase):
    options = {"memory": "256M"}

    def test_out_of_memory(self):
        channel = self.vm.run(["python3", "-c", "x=[]\nwhile 1: x.append(bytearray(10<<20))"],
                              timeout=120)
        self.assertEqual(channel.status, (SIGNALED, 9))
        self.assertEqual(self.out("echo alive"), "alive")

    def test_fork_bomb(self):
        bomb = self.vm.open(["sh", "-c", "b() { b | b & }; b; sleep 500"])
        self.vm.until(lambda: bomb.pid)
        end = time.monotonic() + 5  # not to wait for something: the bomb grows meanwhile
        while time.monotonic() < end:
            self.vm.ping()
        self.assertEqual(self.vm.sh("echo hi", timeout=120).out, b"hi\n")
        self.vm.send(frame(bomb.id, CLOSE))
        bomb.wait(60)
        self.vm.sh("for p in /sys/fs/cgroup/exec/*/cgroup.kill; do case $p in"
                   " *$(sed 's/.*exec.//' /proc/self/cgroup)/*) ;; *) echo 1 > $p;; esac; done")
        self.assertEqual(self.out("echo hi"), "hi")

    def test_descriptors(self):
        self.vm.run(["python3", "-c", "import os\nl=[]\ntry:\n while 1: l.append(os.pipe())\n"
                     "except OSError as e: print(e.errno)"])
        self.assertEqual(self.out("echo hi"), "hi")


class Life(unittest.TestCase):
    """Guests that end."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="agent-test-")
        self.disk = new_disk(self.folder.name)
        self.vm = None

    def tearDown(self):
        if self.vm:
            self.vm.close()
        self.folder.cleanup()

    def boot(self, disk=None, setup=True, **changes):
        if self.vm:
            self.vm.close()
        self.vm = Vm(KERNEL, INITRAMFS, disk or self.disk)
        self.vm.wait_hello()
        return self.vm.setup(**changes) if setup else None

    def test_shutdown_and_again(self):
        self.boot()
        self.vm.sh("echo kept > /root/file; sleep 300 & (trap '' TERM; sleep 1) &")
        running = self.vm.open(["sh", "-c", "trap 'echo bye; exit 4' TERM; echo up; "
                                "while :; do sleep 0.1; done"])
        self.vm.until(lambda: b"up" in running.out)
        self.vm.shutdown()
        self.assertEqual(running.out, b"up\nbye\n")
        self.assertEqual(running.status, (EXITED, 4))
        self.assertEqual(self.vm.process.returncode, 0)
        subprocess.run(["qemu-img", "check", "-q", self.disk], check=True)
        raw = self.disk + ".raw"
        subprocess.run(["qemu-img", "convert", "-O", "raw", self.disk, raw], check=True)
        subprocess.run(["e2fsck", "-fn", raw], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        self.boot(hostname="second", machine_id="f" * 32)
        self.assertEqual(self.vm.sh("cat /root/file; hostname; cat /etc/machine-id").out,
                         b"kept\nsecond\n" + b"f" * 32 + b"\n")

    def test_shutdown_of_what_ignores_it(self):
        self.boot()
        channel = self.vm.open(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"])
        self.vm.until(lambda: b"up" in channel.out)
        self.assertGreater(self.vm.shutdown(), 2.5, "it had no time to end by itself")

    def test_shutdown_before_setup(self):
        self.boot(setup=False)
        self.vm.shutdown()

    def test_setup_that_fails(self):
        for changes in ({"version": 99}, {"random": b"x"}, {"hostname": ""}, {"hostname": "a b"},
                        {"machine_id": "x"}, {"env": ["novalue"]}, {"realtime_ns": 0},
                        {"root_device": "vdz"}, {"root_device": "../etc"}):
            self.boot(setup=False)
            with self.assertRaises(Failure) as caught:
                self.vm.setup(**changes)
            self.assertTrue(caught.exception.message)
            with self.assertRaises(Failure) as refused:
                self.vm.sh("true")
            self.assertIn("setup", refused.exception.message)
            with self.assertRaises(Failure):
                self.vm.setup()
            self.assertIn("setup failed", self.vm.console())
            self.vm.shutdown()

    def test_exec_before_setup(self):
        self.boot(setup=False)
        with self.assertRaises(Failure):
            self.vm.sh("true")
        self.vm.setup()
        self.assertEqual(self.vm.sh("echo hi").out, b"hi\n")

    def test_disks_that_are_no_file_system(self):
        with open(ROOT, "rb") as file:
            beginning = file.read(64 << 20)
        for content, words in ((b"\0" * (1 << 20), "no ext4"), (beginning, "smaller than")):
            path = os.path.join(self.folder.name, "bad.raw")
            with open(path, "wb") as file:
                file.write(content)
            self.boot(disk=path, setup=False)
            with self.assertRaises(Failure) as caught:
                self.vm.setup()
            self.assertIn(words, caught.exception.message)

    def test_garbage_from_the_host(self):
        self.boot()
        channel = self.vm.open(["sh", "-c", "sleep 2; echo x > /root/went-on; sync"])
        self.vm.until(lambda: channel.pid)
        self.vm.send(frame(0, PONG, 0, b"?") + frame(0, EXIT) + frame(77, DATA, IN, b"?"))
        self.assertEqual(self.vm.sh("echo hi").out, b"hi\n")
        self.vm.send(os.urandom(100000))
        for _ in range(600):
            if "nothing more is read" in self.vm.console():
                break
            time.sleep(0.1)
        self.assertIsNone(self.vm.process.poll())
        self.assertIn("nothing more is read", self.vm.console())


if __name__ == "__main__":
    unittest.main()
