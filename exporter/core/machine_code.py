"""Describe what machine code is built for and check that it runs here. Does not import torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from exporter.core import environment
from exporter.core.contract_records import Build, Contract
from exporter.core.errors import ArtifactError, UsageError

# CPU flags that x86-64-v3 adds to baseline x86-64, under their /proc/cpuinfo names.
PORTABLE = Build(
    isa=(
        "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni", "popcnt", "sse4_1",
        "sse4_2", "ssse3", "xsave",
    ),
    level="x86-64-v3",
)  # fmt: skip
# Prefixes of the other flags that a compiler uses by default when it compiles for the native CPU, x86 or Arm.
WIDER = ("amx", "asimd", "atomics", "avx", "bf16", "fma4", "gfni", "i8mm", "sve", "tbm", "xop")


def native() -> Build:
    """Return the build for this CPU: every flag that code compiled for it may use."""
    flags = environment.cpu_flags()
    return Build(tuple(sorted(flag for flag in flags if flag in PORTABLE.isa or flag.startswith(WIDER))))


def require_portable() -> None:
    """Raise UsageError if a portable artifact cannot be built and checked on this machine."""
    what = f"--portable builds for {PORTABLE.level}"
    if platform.machine() != "x86_64":
        raise UsageError(f"{what}, but this machine is {platform.machine()}", "omit --portable")
    if missing := _missing(PORTABLE):
        raise UsageError(f"{what}, but this CPU lacks {missing}", "omit --portable")


def require(build: Build, path: Path, capability: tuple[int, int] | None = None) -> None:
    """Raise ArtifactError if the machine code cannot run on this CPU or on a GPU of this compute capability."""
    remedy = "export it on this machine"
    if missing := _missing(build):
        other = "" if build.level else ", or with --portable"
        raise ArtifactError(f"{path} was built for {missing}, which this CPU lacks", remedy + other)
    if capability and build.capability and not _runs(build.capability, capability):
        here = "{}.{}".format(*capability)
        raise ArtifactError(f"{path} was built for compute capability {build.capability}, this GPU has {here}", remedy)


def _missing(build: Build) -> str:
    """Return the required flags that this CPU lacks; "" if it has them all or its flags are unknown."""
    flags = environment.cpu_flags()
    return ", ".join(name for name in build.isa if flags and name not in flags)


def _runs(text: str, here: tuple[int, int]) -> bool:
    """Return whether kernels run here: those for 8.0 run on 8.6; 9.0 and later need the same one (sm_90a)."""
    built = _numbers(text)
    return built == here or (built[:1] == here[:1] < (9,) and built < here)


def newer(contract: Contract, cuda: str) -> str:
    """Describe the versions that built the artifact and are newer than the ones here; "" if none is.

    torch guarantees that packages run in later releases. Earlier ones may lack functions that the packages call.
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
