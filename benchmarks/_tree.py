"""Sample the memory of a process and its descendants. Pages that processes share count once (PSS)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

INTERVAL_S = 0.2


def memory_gb(root: int) -> float:
    """Return the sum of the proportional set sizes of a process and its descendants, in GB (10^9 bytes)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    family, found = [root], 0.0
    for process in family:  # the list grows during the loop
        family += children.get(process, [])
        with contextlib.suppress(OSError):  # the process has ended
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e9
    return found


class Sampler(threading.Thread):
    """Sample the memory of a process and its descendants until `stop`.

    `samples` are (seconds since `started`, GB); `loads` are the lowest and highest load average of the machine.
    """

    def __init__(self, root: int, started: float) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self.loads: list[float] = []
        self._tree_root, self._since, self._stopping = root, started, threading.Event()

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self._stopping.wait(INTERVAL_S):
            self.samples.append((time.time() - self._since, memory_gb(self._tree_root)))
            load = os.getloadavg()[0]
            self.loads = [min([load, *self.loads]), max([load, *self.loads])]

    def stop(self) -> None:
        """Stop sampling and wait for the thread."""
        self._stopping.set()
        self.join()
