import os
import signal

import pytest

from support import host, leaks
from support.process import eventually, run
from support.sandbox import SHARED, Sandbox, create, remove_shared


class FailuresAtOnce:
    """Shows a failure when it happens: the run is long, and the machine can still be looked at."""

    def __init__(self, config):
        self.plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.outcome in ("failed", "rerun"):
            terminal = self.plugins.get_plugin("terminalreporter")
            terminal.write_line(f"\n{report.nodeid} ({report.when})\n{report.longreprtext}")


def pytest_configure(config):
    config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


# Whoever starts the tests in the background ignores SIGINT, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def target():
    """The tests change the machine they run on, so they make sure that it is one for tests."""
    if os.geteuid() != 0:
        pytest.exit("run as root inside tools/devbox or tools/testvm", 2)
    if not os.path.isdir("/run/systemd/system"):
        pytest.exit("systemd is not running here; use tools/devbox or tools/testvm", 2)
    if run("wd", "version").rc != 0:
        pytest.exit("the workdir package is not installed or workdird does not answer", 2)
    yield
    remove_shared()


@pytest.fixture(scope="module", autouse=True)
def no_leaks(target):
    """After the tests of a module nothing is there that was not there before.

    A fixture that keeps a sandbox for a whole module has to ask for this one: that alone makes
    pytest end it first.
    """
    before = leaks.snapshot()
    yield
    try:
        eventually(lambda: not leaks.left_over(before), 15)
    except AssertionError:
        pytest.fail("left behind: " + ", ".join(leaks.left_over(before)))


@pytest.fixture(scope="module", autouse=True)
def daemon_unharmed(request, target):
    """workdird never ends by itself. A module that ends it says so with `daemon_may_restart`."""
    before = host.daemon_pid()
    yield
    if not getattr(request.module, "daemon_may_restart", False):
        assert host.daemon_pid() == before, "workdird was restarted meanwhile; see its journal"


_shared = {}


def _share(kind, *options):
    sandbox = _shared.get(kind)
    if sandbox is None or not sandbox.usable():
        if sandbox is not None:
            SHARED.discard(sandbox.id)
            sandbox.remove()
        sandbox = create(*options)
        SHARED.add(sandbox.id)
        _shared[kind] = sandbox
    return sandbox


@pytest.fixture
def sandbox(target) -> Sandbox:
    """A sandbox of default shape, shared by all tests; not to be stopped or removed."""
    return _share("default")


@pytest.fixture
def make_sandbox(target):
    """A function like create(); what it made is removed after the test."""
    made = []

    def make(*options, **kwargs):
        made.append(create(*options, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def no_shared_sandboxes(target):
    """For tests in which workdird must not know any other sandbox."""
    remove_shared()
    _shared.clear()
