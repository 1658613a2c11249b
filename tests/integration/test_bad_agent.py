"""Guests whose agent is broken or hostile. The initramfs images come from the build of the tests:
WD_TEST_BAD_AGENT is the directory with MODE.cpio for each mode of bad_agent.cpp."""

import os
import pathlib
import re

import pytest

from support import host, leaks
from support.process import eventually, wd, wd_fails
from support.sandbox import temporary, tiny

daemon_may_restart = True

DIRECTORY = pathlib.Path(os.environ.get("WD_TEST_BAD_AGENT", "/usr/local/lib/workdir-test"))


def starting_with(mode):
    image = DIRECTORY / f"{mode}.cpio"
    assert image.exists(), f"{image} is missing: tell WD_TEST_BAD_AGENT where the suite put it"
    return host.configured(f'[guest]\ninitramfs = "{image}"\n\n[vmm]\naccel = "tcg"\n'
                           'boot_timeout = "20s"\n')


@pytest.fixture
def nothing_left(target):
    before = leaks.snapshot()
    yield
    eventually(lambda: not leaks.left_over(before), 30, "nothing left of it")


@pytest.mark.parametrize("mode", ["garbage", "oversized", "silent", "exit", "version"])
def test_a_broken_agent_is_a_clear_error_with_the_last_console_lines(mode, nothing_left):
    with starting_with(mode):
        pid = host.daemon_pid()
        done = wd_fails("create", *tiny(), rc=9 if mode == "silent" else 10)
        assert len(done.error) < 6000 and "\x1b" not in done.error
        assert "bad-agent" in done.error, "no line of the guest's console: " + done.error
        assert host.daemon_pid() == pid and wd("ls").rc == 0
        log = re.search(r"/\S+/console\.log", done.error)
        if log:
            assert os.path.exists(log[0]), "it points to a log that is not there"


def test_an_agent_that_turns_bad_in_the_middle_of_an_exec(nothing_left):
    with starting_with("later"):
        pid = host.daemon_pid()
        with temporary(*tiny()) as sandbox:
            done = sandbox.exec("true", timeout=60)
            assert done.rc == 125 and done.err and "\x1b" not in done.error, str(done)
            sandbox.wait_state("failed")
            seen = sandbox.inspect()
            assert seen["end_reason"] == "agent-lost" and seen["end_detail"], seen
        assert host.daemon_pid() == pid and wd("ls").rc == 0
