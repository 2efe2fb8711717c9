"""The reasons that compiled packages print, when the standard error output goes to a file, as in sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from exporter.targets import _printed_reasons

CALL = "run_func_( container_handle_, handles.data(), handles.size()) API call failed at runner.cpp, line 144"

def fail(printed, message=CALL):
    os.write(2, printed.encode())
    print(reasons.of(RuntimeError(message)) or "-")

os.write(2, b"Error: an earlier one\\n")
reasons = _printed_reasons.Reasons()
fail("[E1128 22:18:45 shim.cpp:1] Exception in aoti_torch: no kernel for 'Half'\\nframe #0\\nError: a call failed\\n")
fail("Error: Expected u0 >= 2 but received 1\\n")
fail("nothing to read\\n")
fail("Error: not this one\\n", "CUDA out of memory")
"""


def run(folder: Path, to_file: bool) -> list[str]:
    """Return what the script prints for its failures."""
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            stdout=subprocess.PIPE,
            stderr=log if to_file else subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    return done.stdout.splitlines()


def test_the_reason_of_this_call_is_raised(tmp_path: Path) -> None:
    first, second, third, fourth = run(tmp_path, to_file=True)
    assert first == "the package's function failed: no kernel for 'Half'"
    assert second == "the package's function failed: Expected u0 >= 2 but received 1"
    assert (third, fourth) == ("-", "-")


def test_nothing_is_read_from_a_pipe(tmp_path: Path) -> None:
    assert run(tmp_path, to_file=False) == ["-"] * 4
