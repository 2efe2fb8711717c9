"""The machine: compilers, memory, libraries."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

CAUSES = (
    Cause(
        "exporter-itself",
        (),
        "This is a bug of exporter's, and nothing that the model does wrong",
        "report it, with the log; another target may do meanwhile",
    ),
    Cause(
        "no-compiler",
        (r"InvalidCxxCompiler|No working C\+\+ compiler",),
        "There is no C++ compiler, which compile needs",
        "install g++ (Debian: apt install g++), or name one in CXX",
    ),
    Cause(
        "compiler-failed",
        (r"CppCompileError|C\+\+ compile error", r"CUDACompileError"),
        "The C++ compiler rejected the code that AOTInductor wrote",
        "try another compiler (CXX), or another version of torch",
    ),
    Cause(
        "out-of-memory",
        (
            r"can't allocate memory|[Cc]annot allocate memory",
            r"CUDA out of memory|OutOfMemoryError|MemoryError",
            r"std::bad_alloc",
            r"Failed to allocate memory for requested buffer",
            r"CUDA error: out of memory",
        ),
        "The memory did not suffice",
        "take smaller sizes (--size), raise --memory-limit where one was given, or use a larger machine",
    ),
    Cause(
        "killed",
        (),
        "The memory did not suffice",
        "take smaller sizes (--size), raise --memory-limit where one was given, or use a larger machine",
    ),
    Cause(
        "shared-library",
        (r"(?P<what>\S+\.so\S*): cannot open shared object file", r"Could not load this library: (?P<what>\S+)"),
        "The shared library {what} is missing or cannot be loaded",
        "install what holds it, or put its folder into LD_LIBRARY_PATH; `exporter doctor` looks over the rest",
    ),
    Cause(
        "illegal-instruction",
        (r"[Ii]llegal instruction",),
        "The artifact was built for a processor with instructions that this one lacks",
        "export it on the machine that serves it, or on an older one",
    ),
)
