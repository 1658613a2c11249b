#!/usr/bin/python3
"""workdir-shim as a whole against a QEMU that does what each test says (fake_qemu.py)."""

import json
import os
import signal
import socket
import struct
import sys
import tempfile
import textwrap
import time
import unittest

from driver import *

# A sanitizer keeps freed memory for a while, so how much a process holds says little there.
SANITIZED = os.environ.get("WORKDIR_SANITIZE", "none") != "none"
SHIM = os.environ.get("WORKDIR_SHIM", "workdir-shim")
FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_qemu.py")


def credit(count):
    return struct.pack("<I", count)


class ShimTest(unittest.TestCase):
    def setUp(self):
        self.shim = Shim(SHIM).connect()
        self.addCleanup(self.shim.close)

    def launch(self, scenario, **changes):
        kernel = memfd(textwrap.dedent(scenario).encode())
        initrd, disk = memfd(), memfd()
        self.shim.launch(FAKE, kernel, initrd, layers=[(disk, False, False)], **changes)
        for fd in (kernel, initrd, disk):
            os.close(fd)

    def run_guest(self, scenario, **changes):
        self.launch("boot()\n" + textwrap.dedent(scenario), **changes)
        return self.shim.event("ready")

    def check_memory(self, before_kib, most_kib):
        if not SANITIZED:
            self.assertLess(self.shim.rss_kib() - before_kib, most_kib)

    def ended(self, reason, status, detail="", was_ready=True):
        event = self.shim.event("ended")
        self.assertEqual(event["reason"], reason, event)
        self.assertIn(detail, event["detail"])
        self.assertEqual(event["was_ready"], was_ready)
        self.assertEqual(self.shim.wait(), status)
        return event


class Launching(ShimTest):
    def test_events_of_a_boot(self):
        self.launch("boot(); forever()")
        self.assertEqual(self.shim.event()["state"], "waiting")
        phases = [self.shim.event()["phase"] for _ in range(3)]
        self.assertEqual(phases, ["vmm", "kernel", "agent"])
        ready = self.shim.event()
        self.assertEqual(ready["op"], "ready")
        self.assertLessEqual(ready["launch_us"], ready["vmm_us"])
        self.assertLessEqual(ready["vmm_us"], ready["hello_us"])
        self.assertLessEqual(ready["hello_us"], ready["ready_us"])
        self.assertEqual(ready["guest_agent_us"], 2000)
        self.assertEqual(ready["guest_mount_us"], 5000)
        self.assertEqual(ready["root_bytes"], 1 << 30)
        self.assertEqual(ready["kernel_release"], "6.1.0")
        statuses = "\n".join(self.shim.status())
        self.assertIn("READY=1", statuses)
        self.assertIn("STATUS=running, 0 sessions", statuses)

    def test_setup_reaches_the_agent(self):
        self.launch("""
            before = time.time_ns()
            setup = boot()
            good = (setup[2] == [b"vda"] and len(setup[4][0]) == 64 and setup[4][0] != bytes(64)
                    and setup[5] == [b"box"] and setup[7] == [b"A=1", b"B=" + b"x" * 100000]
                    and abs(number(setup, 3) - before) < 10**9)
            sys.stderr.write("all there\\n" if good else f"{setup}\\n")
            power_off()
            """, env=["A=1", "B=" + "x" * 100000])
        self.ended("stopped", 0, "the guest shut itself down")
        self.assertIn("all there", self.shim.stderr_text())

    def test_what_qemu_gets(self):
        self.launch("""
            boot()
            fds = sorted(int(n) for n in os.listdir("/proc/self/fd"))
            links = [os.readlink(f"/proc/self/fd/{n}") for n in fds if os.path.exists(f"/proc/self/fd/{n}")]
            score = open("/proc/self/oom_score_adj").read().strip()
            blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
            print("null", links[0] == "/dev/null", "sockets",
                  sum(l.startswith("socket:") for l in links), "memfd",
                  sum("memfd:" in l for l in links), "env", sorted(os.environ),
                  "score", score, "blocked", blocked, flush=True)
            power_off()
            """)
        self.ended("stopped", 0)
        # kernel (also opened as the scenario), initrd, disk, memory and state; qmp, agent and console
        text = self.shim.stderr_text()
        self.assertRegex(text, r"null True sockets 3 memfd [56] env \['LC_ALL', 'LD_PRELOAD', 'PATH'.*\] "
                               r"score 500 blocked True")

    def test_probe_is_ready_at_hello(self):
        self.launch("qmp.greet(); hello(); qmp.answer('quit'); power_off('host-qmp-quit')",
                    probe=True)
        self.shim.event("ready")
        self.shim.request(op="shutdown", deadline_ms=1000)
        self.ended("stopped", 0)

    def test_qemu_that_is_not_there(self):
        kernel = memfd()
        self.shim.launch("/nonexistent/qemu", kernel, kernel, probe=True)
        self.ended("vmm-crash", 47, "/nonexistent/qemu: No such file or directory", False)

    def test_launch_with_too_few_descriptors(self):
        self.shim.request([0], op="launch", accel="tcg", qemu="/bin/true", cpus=1,
                          memory_bytes=1 << 28, layers=[], hostname="", machine_id="", env=[],
                          boot_timeout_ms=1000, probe=True, restore=False)
        self.ended("vmm-crash", 47, "1 file descriptors", False)

    def test_qemu_exits_at_once(self):
        self.launch("sys.exit('no such machine')")
        self.ended("vmm-crash", 47, "QEMU exited with status 1: no such machine", False)

    def test_qemu_is_killed(self):
        self.launch("os.kill(os.getpid(), signal.SIGSEGV)")
        self.ended("vmm-crash", 47, "QEMU was killed by SIGSEGV", False)

    def test_boot_timeouts(self):
        for scenario, detail, limit in (
                ("forever()", "QEMU did not answer", 500),
                ("qmp.greet(); console.send(b'one\\r\\ntwo\\x1b'); forever()",
                 "did not say hello", 5000),
                ("qmp.greet(); hello(); forever()", "set-up did not finish", 5000)):
            with self.subTest(detail):
                self.shim.close()
                self.setUp()
                self.launch(scenario, boot_timeout_ms=limit)
                event = self.ended("timeout", 44, detail, False)
                if "hello" in detail:
                    self.assertEqual(event["console_tail"], "one\ntwo\\x1b")
                    self.assertEqual(self.shim.console_log(), b"one\r\ntwo\x1b")

    def test_agent_that_fails(self):
        self.launch("""
            qmp.greet(); hello(); agent.expect(SETUP)
            agent.send(0, FAILED, payload=fields(0, 5, b"no root disk\\x07")); forever()""")
        self.ended("agent-lost", 49, "could not be set up: no root disk\\x07", False)

    def test_agent_of_another_version(self):
        self.launch("qmp.greet(); hello(7, 9); forever()")
        self.ended("agent-lost", 49, "protocol versions 7 to 9, this workdir 1 to 1", False)

    def test_agents_that_talk_nonsense(self):
        for words, detail in (
                ('agent.sock.send(b"login: " * 9)', "agent sent a frame"),
                ('agent.sock.send(struct.pack("<IIBBH", 0, 65537, HELLO, 0, 0))', "larger than"),
                ('agent.send(0, HELLO, payload=b"\\1")', "not expected"),
                ('agent.send(0, READY)', "not expected"),
                ('agent.send(5, DATA, OUT, b"x")', "before it was ready"),
                ('hello(); agent.expect(SETUP); hello()', "not expected")):
            with self.subTest(words):
                self.shim.close()
                self.setUp()
                self.launch(f"qmp.greet(); {words}; forever()")
                self.ended("agent-lost", 49, detail, False)

    def test_qmp_that_talks_nonsense(self):
        for words, detail in (('qmp.sock.send(b"hello\\n")', "garbage on QMP"),
                              ('qmp.sock.send(b"[" * 100 + b"\\n")', "too deep"),
                              ('qmp.sock.sendall(b"x" * 300000)', "overlong"),
                              ('qmp.send({"return": {}, "id": 9})', "not asked"),
                              ('qmp.greet(); qmp.send({"QMP": {}})', "greeted twice")):
            with self.subTest(words):
                self.shim.close()
                self.setUp()
                self.launch(f"signal.signal(signal.SIGPIPE, signal.SIG_IGN); {words}; forever()")
                self.ended("vmm-crash", 47, detail, False)

    def test_guest_that_stops_before_it_is_ready(self):
        self.launch("qmp.greet(); console.send(b'init: bye\\n'); power_off()")
        event = self.ended("agent-lost", 49, "before its agent was ready", False)
        self.assertEqual(event["console_tail"], "init: bye")


class Ending(ShimTest):
    def test_kernel_panic(self):
        self.run_guest("""
            console.send(b"[1.0] Kernel panic - not syn")
            time.sleep(0.1)
            console.send(b"cing: Attempted to kill init!\\r\\n---\\n")
            power_off()""")
        self.ended("agent-lost", 49, "guest kernel panic: Attempted to kill init!")

    def test_guest_powers_off(self):
        self.run_guest("power_off('guest-shutdown')")
        self.ended("stopped", 0, "the guest shut itself down")

    def test_shutdown_in_order(self):
        self.run_guest("agent.expect(SHUTDOWN); power_off()")
        self.shim.request(op="shutdown", deadline_ms=10000)
        self.ended("stopped", 0, "stopped on request")
        self.assertIn("STATUS=stopping", "\n".join(self.shim.status()))

    def test_sigterm_stops_in_order(self):
        self.run_guest("agent.expect(SHUTDOWN); power_off()")
        self.shim.process.terminate()
        self.ended("stopped", 0, "stopped on request")

    def test_sigterm_before_launch(self):
        self.shim.event("hello")
        self.shim.process.terminate()
        self.ended("stopped", 0, "before anything was launched", False)

    def test_sigterm_while_booting(self):
        self.launch("qmp.greet(); qmp.answer('quit'); power_off('host-qmp-quit')")
        while self.shim.event("progress")["phase"] != "kernel":
            pass
        self.shim.process.terminate()
        self.ended("stopped", 0, "stopped on request", False)

    def test_guest_that_does_not_shut_down(self):
        self.run_guest("agent.expect(SHUTDOWN); qmp.answer('quit'); power_off('host-qmp-quit')")
        self.shim.request(op="shutdown", deadline_ms=300)
        self.ended("stopped", 0, "did not shut down within 0.3 s")

    def test_qemu_that_does_not_quit(self):
        self.run_guest("forever()")
        self.shim.request(op="shutdown", deadline_ms=100)
        self.ended("stopped", 0, "did not shut down within 0.1 s")

    def test_agent_port_closes(self):
        self.run_guest("qmp.event('VSERPORT_CHANGE', open=False, id='agent-port'); forever()")
        self.ended("agent-lost", 49, "closed its port")

    def test_channels_close(self):
        for name, reason, status in (("agent.sock", "agent-lost", 49), ("qmp.sock", "vmm-crash", 47)):
            with self.subTest(name):
                self.shim.close()
                self.setUp()
                self.run_guest(f"{name}.shutdown(socket.SHUT_RDWR); forever()")
                self.ended(reason, status, "closed")

    def test_garbage_after_ready(self):
        self.run_guest("agent.sock.send(b'x' * 100); forever()")
        session = self.shim.session()
        self.ended("agent-lost", 49, "the agent sent a frame")
        error = parse_fields(session.expect(ERROR).payload)
        self.assertEqual(number(error, 1), 3)
        self.assertIn(b"agent-lost", error[3][0])

    def test_disk_full_pauses(self):
        self.run_guest("""
            def no_space():
                qmp.event("BLOCK_IO_ERROR", device="", nospace=True, operation="write",
                          action="stop", reason="No space left on device")
            no_space()
            no_space()
            got = json.loads(qmp.lines.readline())
            no_space()
            qmp.send({"id": got["id"], "return": {}})
            no_space()
            qmp.answer("cont")
            agent.expect(SHUTDOWN)
            power_off()""")
        deadline = time.monotonic() + 120
        while "goes on: there is space" not in self.shim.stderr_text():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        self.assertEqual(self.shim.stderr_text().count("the guest is paused"), 1)
        self.assertIn("STATUS=paused: no space left on the host for the disk",
                      "\n".join(self.shim.status()))
        self.shim.request(op="shutdown", deadline_ms=5000)
        self.ended("stopped", 0)

    def test_disk_that_cannot_go_on(self):
        self.run_guest("""
            qmp.event("BLOCK_IO_ERROR", nospace=True, action="stop", reason="")
            qmp.answer("cont", "the disk is gone")
            forever()""")
        self.ended("disk", 43, "the disk is gone")

    def test_end_is_told_to_a_later_connection(self):
        self.run_guest("""
            channel, _ = accept()
            agent.expect(CREDIT)
            agent.send(channel, DATA, OUT, bytes(60000))
            agent.send(channel, DATA, OUT, bytes(60000))
            sys.exit(3)""")
        # A client that does not read holds the shim back for a second.
        session = self.shim.session(sndbuf=4096)
        session.send(0, CREDIT, OUT, credit(WINDOW))
        self.shim.event("ended")
        self.shim.connect()
        self.assertEqual(self.shim.event()["state"], "ended")
        self.assertEqual(self.shim.event("ready")["op"], "ready")
        self.ended("vmm-crash", 47, "status 3")

    def test_nobody_there_at_the_end(self):
        self.run_guest("agent.expect(SHUTDOWN); power_off()")
        self.shim.control.close()
        self.shim.process.terminate()
        self.assertEqual(self.shim.wait(), 0)


class Snapshots(ShimTest):
    QUIET = """
        ram = int(os.environ["WORKDIR_RAM"].rsplit("/", 1)[1])
        state = int(re.search(r"fd=(\\d+),set=100", " ".join(sys.argv))[1])
        os.pwrite(ram, b"A" * 4096, 1 << 20)
        agent.expect(QUIESCE)
        agent.send(0, QUIESCED)
        qmp.answer("stop")
        """

    def snapshot(self):
        memory, state = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.shim.request([memory.fileno(), state.fileno()], op="snapshot", compact=False)
        return memory, state

    def test_files_are_complete_and_then_it_ends(self):
        self.run_guest(self.QUIET + """
        os.write(state, b"STATE")
        qmp.answer("xen-save-devices-state")
        qmp.answer("quit")
        power_off("host-qmp-quit")
        """)
        memory, state = self.snapshot()
        self.assertEqual(self.shim.event("snapshotted")["dirty_bytes"], 4096)
        self.ended("stopped", 0, "its snapshot is complete")
        self.assertEqual(os.pread(state.fileno(), 100, 0), b"STATE")
        self.assertEqual(os.fstat(memory.fileno()).st_size, 256 << 20)
        self.assertEqual(os.pread(memory.fileno(), 8192, 1 << 20), b"A" * 4096 + bytes(4096))
        self.assertLess(os.fstat(memory.fileno()).st_blocks * 512, 1 << 20)

    def test_what_fails_is_undone(self):
        self.run_guest(self.QUIET + """
        qmp.answer("xen-save-devices-state", error="no space")
        qmp.answer("cont")
        agent.expect(SETUP)
        agent.send(0, READY, payload=fields(5_000_000, 1_000_000, 1 << 30))
        forever()
        """)
        self.snapshot()
        self.assertIn("no space", self.shim.event("snapshot_failed")["message"])
        self.shim.connect()
        self.assertEqual(self.shim.event("hello")["state"], "running")

    def test_a_state_that_is_not_there_is_a_failure(self):
        self.run_guest(self.QUIET + """
        qmp.answer("xen-save-devices-state")
        qmp.answer("cont")
        forever()
        """)
        self.snapshot()
        self.shim.request([], op="shutdown", deadline_ms=0)
        self.ended("stopped", 0)

    def test_a_guest_that_is_never_quiet_runs_on(self):
        self.run_guest("""
        agent.expect(QUIESCE)
        agent.expect(SETUP)
        agent.send(0, QUIESCED)
        agent.send(0, READY, payload=fields(5_000_000, 1_000_000, 1 << 30))
        channel, _ = accept()
        agent.expect(DETACH)
        agent.expect(QUIESCE)
        forever()
        """, boot_timeout_ms=1000)
        self.snapshot()
        self.assertIn("in time", self.shim.event("snapshot_failed")["message"])
        session = self.shim.session()
        session.expect(OPENED)
        self.snapshot()
        self.assertIn("1 session", self.shim.event("snapshot_failed")["message"])
        session.send(0, DETACH)
        self.assertEqual(self.shim.event("activity")["sessions"], 0)
        self.snapshot()
        self.assertIn("in time", self.shim.event("snapshot_failed")["message"])


class Control(ShimTest):
    def test_new_connection_replaces_the_old(self):
        self.run_guest("channel, _ = accept(); agent.expect(DETACH); forever()")
        session = self.shim.session()
        session.expect(OPENED)
        old = self.shim.control
        self.shim.connect()
        hello = self.shim.event("hello")
        self.assertEqual((hello["state"], hello["sessions"]), ("running", 1))
        self.shim.event("ready")
        old.settimeout(5)
        while said := old.recv(1 << 18):
            self.assertEqual(json.loads(said)["op"], "activity")
        session.send(0, DETACH)
        self.assertIsNone(session.receive())

    def test_requests_that_make_no_sense(self):
        self.shim.control.send(b"nonsense")
        self.shim.control.send(b"[" * 100000)
        self.shim.request(op="open_session")
        self.shim.request([0] * 9, op="launch")
        self.shim.request(op="no such")
        self.assertEqual(self.shim.event()["op"], "hello")
        self.run_guest("forever()")

    def test_session_before_ready(self):
        session = self.shim.session()
        error = parse_fields(session.expect(ERROR).payload)
        self.assertEqual(number(error, 1), 3)
        self.assertIsNone(session.receive())

    @unittest.skipUnless(os.getuid() == 0, "needs root to become someone else")
    def test_other_users_are_refused(self):
        os.chmod(self.shim.folder.name, 0o755)
        os.chmod(self.shim.path, 0o777)
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.connect(self.shim.path)
            os._exit(0 if peer.recv(10) == b"" else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.shim.event()["op"], "hello")


ECHO = """
    channel, request = accept()
    agent.send(channel, CREDIT, IN, struct.pack("<I", WINDOW))
    granted, waiting, ended = 0, bytearray(), False
    while waiting or not ended:
        got = agent.receive()
        if got.type == CREDIT and got.flag == OUT:
            granted += struct.unpack("<I", got.payload)[0]
        elif got.type == DATA:
            waiting += got.payload
            agent.send(channel, CREDIT, IN, struct.pack("<I", len(got.payload)))
        elif got.type == EOF:
            ended = True
        while n := min(granted, len(waiting), 60000):
            agent.send(channel, DATA, OUT, bytes(waiting[:n]))
            del waiting[:n]
            granted -= n
    agent.send(channel, EOF, OUT)
    agent.send(channel, EXIT, payload=fields(0, 7, 5, 6))
    forever()
"""


class Sessions(ShimTest):
    def test_echo(self):
        self.run_guest(ECHO)
        data = os.urandom(3_000_000)
        run = Exec(self.shim.session([b"cat"], [b"X=1"]))
        end = run.run(data)
        self.assertEqual(end.type, EXIT, end)
        self.assertEqual(number(parse_fields(end.payload), 2), 7)
        self.assertEqual(bytes(run.out[OUT]), data)
        self.assertIsNone(run.stream.receive())

    def test_request_arrives_whole(self):
        self.run_guest("""
            channel, request = accept()
            total = sum(map(len, request[1]))
            agent.send(channel, EXIT, payload=fields(0, total % 251, 0, 0))
            forever()""")
        argv = [b"x" * 100_000] * 9 + [b"y"]
        end = Exec(self.shim.session(argv)).run()
        self.assertEqual(number(parse_fields(end.payload), 2), 900_001 % 251)

    def test_request_sizes(self):
        self.run_guest("forever()")
        for raw in (b"", b"x" * (1024 * 1024 + 1)):
            error = parse_fields(self.shim.session(raw=raw).expect(ERROR).payload)
            self.assertEqual(number(error, 1), 5)
            self.assertIn(b"limit is 1048576", error[3][0])

    def test_request_that_is_no_file(self):
        self.run_guest("forever()")
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        self.shim.request([theirs.fileno(), read], op="open_session")
        theirs.close()
        self.assertIn(b"not a file", FrameStream(ours).expect(ERROR).payload)

    def test_nobody_reads_stdin(self):
        self.run_guest("""
            channel, _ = accept()
            agent.send(channel, EOF, IN)
            agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))
            forever()""")
        session = self.shim.session()
        session.expect(OPENED)
        self.assertEqual(session.expect(EOF).flag, IN)
        session.expect(EXIT)

    def test_open_failed(self):
        self.run_guest("""
            piece = agent.expect(OPEN)
            agent.send(piece.channel, OPEN_FAILED, payload=fields(2, 2, b"no such\\x1b command"))
            forever()""")
        session = self.shim.session()
        failure = parse_fields(session.expect(OPEN_FAILED).payload)
        self.assertEqual(number(failure, 1), 2)
        self.assertEqual(failure[3], [b"no such\\x1b command"])
        self.assertIsNone(session.receive())

    def test_signals_and_leaving(self):
        self.run_guest("""
            for expected in (SIGNAL, CLOSE):
                channel, _ = accept()
                got = agent.receive()
                agent.send(channel, EXIT, payload=fields(1, got.type, 0, 0))
                agent.send(channel, DATA, OUT, b"late")
            channel, _ = accept()
            agent.expect(DETACH)
            agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))
            power_off()""")
        session = self.shim.session()
        session.expect(OPENED)
        session.send(0, SIGNAL, payload=b"\2")
        session.expect(EXIT)
        session = self.shim.session()
        session.expect(OPENED)
        session.sock.close()
        session = self.shim.session()
        session.expect(OPENED)
        session.sock.sendall(frame(0, DETACH))
        session.sock.close()
        self.ended("stopped", 0)

    def test_client_violations(self):
        cases = (frame(0, DATA, IN, b"x"), frame(0, DATA, OUT, b"x"), frame(1, SIGNAL, 0, b"\2"),
                 frame(0, SIGNAL, 0, b"\0"), frame(0, SIGNAL, 0, b"\2\2"), frame(0, OPEN),
                 frame(0, HELLO), frame(0, CREDIT, IN, credit(1)), frame(0, CREDIT, OUT, b"1"),
                 frame(0, CREDIT, OUT, credit(WINDOW + 1)), frame(0, CREDIT, OUT, credit(0)),
                 frame(0, CREDIT, OUT, credit(WINDOW)) + frame(0, CREDIT, OUT, credit(1)),
                 frame(0, EOF, IN) * 2, frame(0, EOF, IN, b"x"), b"GET / HTTP/1.1\r\n")
        self.run_guest(f"""
            for i in range({len(cases)}):
                channel, _ = accept()
                while agent.receive().type != CLOSE:
                    pass
            power_off()""")
        for case in cases:
            with self.subTest(case):
                session = self.shim.session()
                session.expect(OPENED)
                session.sock.sendall(case)
                error = parse_fields(session.expect(ERROR).payload)
                self.assertEqual(number(error, 1), 4)
                self.assertIsNone(session.receive())
        self.ended("stopped", 0)

    def test_agent_violations_end_one_session(self):
        cases = ("agent.send(channel, DATA, OUT, b'x')", "agent.send(channel, DATA, IN, b'x')",
                 "agent.send(channel, OPENED, payload=fields(1))",
                 "agent.send(channel, EOF, OUT); agent.send(channel, EOF, OUT)",
                 "agent.send(channel, CREDIT, IN, struct.pack('<I', WINDOW + 1))",
                 "agent.send(channel, CREDIT, OUT, struct.pack('<I', 1))",
                 "agent.send(channel, EXIT, payload=b'x')", "agent.send(channel, SIGNAL)",
                 "agent.send(channel, OPEN_FAILED, payload=fields(0, 0, b''))",
                 "agent.send(channel, ERROR)")
        body = "other, _ = accept()\n"
        for case in cases:
            body += f"channel, _ = accept(); {case}; agent.expect(CLOSE)\n"
        body += "agent.send(other, EXIT, payload=fields(0, 0, 0, 0)); forever()"
        self.run_guest(body)
        other = self.shim.session()
        other.expect(OPENED)
        for case in cases:
            with self.subTest(case):
                session = self.shim.session()
                got = session.receive()
                while got.type in (OPENED, EOF):
                    got = session.receive()
                self.assertEqual(got.type, ERROR)
                self.assertEqual(number(parse_fields(got.payload), 1), 3)
        other.expect(EXIT)

    def test_service_manager_that_does_not_read(self):
        self.run_guest("""
            while True:
                channel, _ = accept()
                agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))""")
        # The queue of a datagram socket holds about ten messages (net.unix.max_dgram_qlen).
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        filler.setblocking(False)
        with self.assertRaises(BlockingIOError):
            for _ in range(10000):
                filler.sendto(b"X=1", os.path.join(self.shim.folder.name, "notify"))
        filler.close()
        for _ in range(3):
            self.assertEqual(Exec(self.shim.session()).run(timeout=120).type, EXIT)
            time.sleep(1.1)

    def test_too_many_sessions(self):
        self.run_guest("""
            while True:
                accept()""")
        sessions = [self.shim.session() for _ in range(128)]
        sessions[-1].expect(OPENED)
        error = parse_fields(self.shim.session().expect(ERROR).payload)
        self.assertEqual(number(error, 1), 5)
        self.assertIn(b"128 sessions", error[3][0])

    def test_reader_that_never_reads(self):
        self.run_guest("""
            channel, _ = accept()
            for stream in (OUT, ERR):
                agent.expect(CREDIT)
            for i in range(WINDOW):
                agent.send(channel, DATA, OUT, b"a")
                agent.send(channel, DATA, ERR, b"b")
            for stream in (OUT, ERR):
                agent.send(channel, EOF, stream)
            agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))
            channel, _ = accept()
            agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))
            forever()""")
        before = self.shim.rss_kib()
        stuck = self.shim.session(sndbuf=4096)
        stuck.expect(OPENED)
        for stream in (OUT, ERR):
            stuck.send(0, CREDIT, stream, credit(WINDOW))
        # Another session gets through, and half a million tiny frames cost no more than their bytes.
        self.shim.session().expect(OPENED, timeout=120)
        self.check_memory(before, 4096)
        end = Exec(stuck)
        stuck.sock.setblocking(False)
        while end.end is None:
            got = stuck.receive()
            if got.type == DATA:
                end.out[got.flag] += got.payload
            elif got.type == EXIT:
                end.end = got
        self.assertEqual(end.out, {OUT: b"a" * WINDOW, ERR: b"b" * WINDOW})

    def test_client_that_grants_and_never_reads(self):
        self.run_guest("""
            channel, _ = accept()
            granted = 0
            while True:
                got = agent.receive()
                if got.type == CLOSE:
                    power_off()
                while_sent = struct.unpack("<I", got.payload)[0]
                agent.send(channel, DATA, OUT, bytes(while_sent))""")
        session = self.shim.session(sndbuf=4096)
        session.expect(OPENED)
        for _ in range(100):
            try:
                session.send(0, CREDIT, OUT, credit(32768))
            except BrokenPipeError:
                break
            time.sleep(0.01)
        self.ended("stopped", 0)

    def test_flood_of_empty_frames(self):
        self.run_guest("""
            channel, _ = accept()
            for i in range(1000):
                agent.sock.sendall(frame(channel, DATA, OUT) * 100 + frame(0, PONG, 0, b"x") * 100
                                   + frame(9999, DATA, OUT, b"x" * 100))
            agent.send(channel, EXIT, payload=fields(0, 0, 0, 0))
            forever()""")
        before = self.shim.rss_kib()
        session = self.shim.session()
        session.expect(OPENED)
        session.expect(EXIT, timeout=120)
        self.check_memory(before, 2048)

    def test_guest_that_never_reads(self):
        self.run_guest("""
            channel, _ = accept()
            agent.send(channel, CREDIT, IN, struct.pack("<I", WINDOW))
            forever()""")
        before = self.shim.rss_kib()
        session = self.shim.session()
        session.expect(OPENED)
        session.expect(CREDIT)
        session.sock.settimeout(1)
        with self.assertRaises(TimeoutError):
            session.sock.sendall(frame(0, SIGNAL, 0, b"\2") * 2_000_000)
        self.check_memory(before, 4096)
        # The shim itself still answers, and more opens wait for the guest without being held.
        others = [self.shim.session(raw=b"x" * 1_000_000) for _ in range(20)]
        self.shim.wait_until_read()  # what a connection still holds goes when another replaces it
        self.shim.connect()
        self.assertEqual(self.shim.event("hello")["sessions"], 21)
        self.check_memory(before, 4096)
        for other in others:
            other.sock.close()
        session.sock.close()
        self.shim.request(op="shutdown", deadline_ms=100)
        self.ended("stopped", 0)

    def test_guest_dies(self):
        self.run_guest("channel, _ = accept(); os.kill(os.getpid(), signal.SIGKILL)")
        session = self.shim.session()
        session.expect(OPENED)
        error = parse_fields(session.expect(ERROR).payload)
        self.assertEqual(number(error, 1), 3)
        self.assertIn(b"vmm-crash", error[3][0])
        self.ended("vmm-crash", 47, "SIGKILL")

    def test_last_words_of_a_guest_are_delivered(self):
        self.run_guest("""
            channel, _ = accept()
            agent.expect(CREDIT)
            agent.send(channel, DATA, OUT, b"z" * 60000)
            agent.send(channel, EXIT, payload=fields(0, 3, 0, 0))
            os._exit(9)""")
        run = Exec(self.shim.session())
        self.assertEqual(run.run().type, EXIT)
        self.assertEqual(len(run.out[OUT]), 60000)
        self.ended("vmm-crash", 47, "status 9")


class ConsoleLog(ShimTest):
    def test_log_stays_bounded(self):
        self.run_guest("""
            for i in range(30000):
                console.sendall(b"line %06d %s\\r\\n" % (i, b"x" * 80))
            console.sendall(b"the end\\r\\n")
            power_off()""")
        event = self.ended("stopped", 0)
        log = self.shim.console_log()
        self.assertLessEqual(len(log), 1 << 20)
        self.assertGreater(len(log), 500_000)
        self.assertTrue(log.startswith(b"line "))
        self.assertTrue(log.endswith(b"the end\r\n"))
        lines = log.splitlines()[:-1]
        numbers = [int(line.split()[1]) for line in lines]
        self.assertEqual(numbers, list(range(numbers[0], 30000)))
        self.assertTrue(event["console_tail"].endswith("the end"))
        self.assertTrue(event["console_tail"].startswith("line "))

    def test_chatty_qemu_does_not_fill_the_journal(self):
        self.run_guest("""
            for i in range(5000):
                print("blah", "y" * 3000, file=sys.stderr)
            sys.exit("last words")""")
        self.ended("vmm-crash", 47, "last words")
        self.assertLess(len(self.shim.stderr_text()), 400_000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
