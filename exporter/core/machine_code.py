"""What machine code is built for, and whether it runs here. Nothing here imports torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from exporter.core import environment
from exporter.core.contract_records import Build, Contract
from exporter.core.errors import ArtifactError, UsageError

# What x86-64-v3 has over any x86-64, as /proc/cpuinfo names it.
PORTABLE = Build(
    isa=(
        "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni", "popcnt", "sse4_1",
        "sse4_2", "ssse3", "xsave",
    ),
    level="x86-64-v3",
)  # fmt: skip
# What else a compiler uses unasked where it compiles for one CPU, by how the names begin; on Arm too.
WIDER = ("amx", "asimd", "atomics", "avx", "bf16", "fma4", "gfni", "i8mm", "sve", "tbm", "xop")


def native() -> Build:
    """For this CPU: all that code compiled for it may use."""
    flags = environment.cpu_flags()
    return Build(tuple(sorted(flag for flag in flags if flag in PORTABLE.isa or flag.startswith(WIDER))))


def require_portable() -> None:
    """UsageError where a portable artifact could not be built and checked."""
    what = f"--portable builds for {PORTABLE.level}"
    if platform.machine() != "x86_64":
        raise UsageError(f"{what}, and this machine is {platform.machine()}", "leave it out")
    if missing := _missing(PORTABLE):
        raise UsageError(f"{what}, and this CPU has no {missing}", "leave it out")


def require(build: Build, path: Path, capability: tuple[int, int] | None = None) -> None:
    """ArtifactError for machine code that would not run on this CPU, or on a GPU of this compute capability."""
    remedy = "export it on this machine"
    if missing := _missing(build):
        other = "" if build.level else ", or with --portable"
        raise ArtifactError(f"{path} was built for {missing}, which this CPU has not", remedy + other)
    if capability and build.capability and not _runs(build.capability, capability):
        here = "{}.{}".format(*capability)
        raise ArtifactError(f"{path} was built for compute capability {build.capability}, this GPU has {here}", remedy)


def _missing(build: Build) -> str:
    """What this CPU has not, as far as its flags are known; "" when it has all."""
    flags = environment.cpu_flags()
    return ", ".join(name for name in build.isa if flags and name not in flags)


def _runs(text: str, here: tuple[int, int]) -> bool:
    """Kernels for 8.0 run on 8.6; from 9.0 on they are for one capability alone, as triton compiles them (sm_90a)."""
    built = _numbers(text)
    return built == here or (built[:1] == here[:1] < (9,) and built < here)


def newer(contract: Contract, cuda: str) -> str:
    """What built the artifact and is newer than what is here; "" when nothing is.

    torch promises that packages run in later releases, not that they do in earlier ones, which may lack what they call.
    """
    torch, build = environment.version("torch") or "", contract.build or Build()
    found = []
    if _numbers(contract.torch)[:2] > _numbers(torch)[:2]:
        found.append(f"built by torch {contract.torch}, and this is {torch}")
    if _numbers(build.cuda)[:1] > _numbers(cuda)[:1]:
        found.append(f"built with CUDA {build.cuda}, and this is {cuda or 'none'}")
    return "; ".join(found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))
