"""First half of the reboot test: leaves two stopped sandboxes, a running and a parked one behind.

    pytest tests/integration/phases/before_reboot.py
    (reboot, for example: tools/testvm reboot)
    pytest tests/integration/phases/after_reboot.py
"""

import json
import pathlib

from support.process import must, wd_ok
from support.sandbox import LEFT_BEHIND, create, listed, tiny

NOTES = pathlib.Path("/var/tmp/wdtest-reboot.json")


def test_leave_sandboxes_behind(target):
    stopped, again = create(*tiny(), "--name", "wdtest-stopped"), create(*tiny(), "--cpus", "2")
    running = create(*tiny(), "--name", "wdtest-running", "--label", "phase=reboot",
                     "--env", "KEPT=environment")
    for number, sandbox in enumerate((stopped, again, running)):
        sandbox.sh(f"echo sandbox {number} > /root/file; sync")
    for sandbox in (stopped, again):
        wd_ok("stop", sandbox.id)
    parked = create(*tiny(), "--env", "KEPT=in memory")
    parked.sh("echo not on the disk > /run/file; mkdir /run/dir; "
              "(cd /run/dir; exec sleep 100000) >/dev/null 2>&1 </dev/null & echo $! > /run/pid")
    wd_ok("standby", parked.id)
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    NOTES.write_text(json.dumps({
        "boot": boot,
        "sandboxes": {s.id: listed()[s.id] for s in (stopped, again, running)},
        "machine_ids": {running.id: running.sh("cat /etc/machine-id")},
        "parked": listed()[parked.id],
        "order": [s.id for s in (stopped, again, running)],
    }))
    LEFT_BEHIND.update((stopped.id, again.id, running.id, parked.id))
    must("sync")
