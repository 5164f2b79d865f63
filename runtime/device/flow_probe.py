"""FlowProbe: whether this machine can run graphs with loops and branches, found out in a process of its own.

Where a driver or a library fails at them it may end the process, so that the first try is not made in ours.
"""

import signal
import subprocess
import sys
from functools import cache
from typing import Any

from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.device.cuda_errors import INSTALL

LEAST_CUDA = (12, 8)
"""First version whose driver runs every kind of node that a flow has."""
TRIAL = "vvs.runtime.device.flow_trial"
TIMEOUT_S = 120.0


def why_no_flows(core: Any) -> str:
    """Why no flow can be assembled; empty if it can.

    Args:
        core: the package ``cuda.core``.

    """
    driver = find_driver()
    if driver is not None and driver.cuda < LEAST_CUDA:
        found, wanted = (".".join(map(str, version)) for version in (driver.cuda, LEAST_CUDA))
        return f"the driver runs CUDA {found}, and loops in graphs need {wanted}; update the driver"
    if not hasattr(getattr(core, "graph", None), "GraphDefinition"):
        return f"cuda-core {core.__version__} cannot define graphs; update it with `{INSTALL}`"
    return tried()


@cache
def tried() -> str:
    """What running a small flow in another process came to: a reason, or nothing. Done once per process."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", TRIAL], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"a small one did not end within {TIMEOUT_S:g} s"
    except OSError as error:
        return f"no process can be started to try a small one ({error})"
    if done.returncode < 0:
        return f"a small one ended its process with {_signal(-done.returncode)}"
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return f"a small one failed: {said[-1]}"
    return ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
