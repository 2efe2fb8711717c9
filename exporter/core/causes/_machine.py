"""Causes on the machine: compilers, memory, libraries."""

from __future__ import annotations

from exporter.core.causes._cause import Cause

CAUSES = (
    Cause(
        "exporter-itself",
        (),
        "This is a bug in exporter, not a problem of the model",
        "report it with the log; another target may work in the meantime",
    ),
    Cause(
        "no-compiler",
        (r"InvalidCxxCompiler|No working C\+\+ compiler",),
        "The target compile needs a C++ compiler, and none that works was found",
        "install g++ (Debian: apt install g++), or name one in CXX; `exporter doctor` says what is wrong with it",
    ),
    Cause(
        "compiler-unusable",
        (),
        "The C++ compiler that CXX names cannot be used",
        "correct CXX, or unset it",
    ),
    Cause(
        "no-openssl",
        (r"FileNotFoundError: .*'openssl'",),
        "torch.compile calls the program openssl, which is not installed",
        "install openssl (Debian: apt install openssl), or ship the package, `compile`, which does not need it",
    ),
    Cause(
        "disk-full",
        (
            r"\A[\s\S]*?(No space left on device|Disk quota exceeded)",  # also if another cause's pattern is before it
            r"basic_ios::clear: iostream error",  # of torch.jit.save
        ),
        "There is no space left on the disk",
        "free some space, or write to another disk: --out, TMPDIR, TORCHINDUCTOR_CACHE_DIR",
    ),
    Cause(
        "cache-not-writable",
        (r"InductorError: (?:PermissionError|OSError: \[Errno 30\])",),
        "Inductor cannot write to its cache",
        "set TORCHINDUCTOR_CACHE_DIR to a writable directory",
        only=("compile",),
    ),
    Cause(
        "compiler-killed",
        (
            # also if another cause's pattern is before it
            r"\A[\s\S]*?(Killed signal terminated program|internal compiler error: Killed|terminated with signal 9)",
            r"\A[\s\S]*?(cc1plus: out of memory|virtual memory exhausted|LLVM ERROR: out of memory)",
        ),
        "The C++ compiler ran out of memory, or was killed",
        "free some memory, or raise the container's memory limit",
    ),
    Cause(
        "compiler-failed",
        (r"CppCompileError|C\+\+ compile error", r"CUDACompileError"),
        "The C++ compiler rejected the code that AOTInductor generated",
        "try another compiler (CXX), or another version of torch",
    ),
    Cause(
        "out-of-memory",
        (
            r"can't allocate memory|[Cc]annot allocate memory",
            r"CUDA out of memory|OutOfMemoryError|MemoryError",
            r"std::bad_alloc",
            r"failed to map segment from shared object(?!: Operation not permitted)",  # that is a mount with noexec
            r"Failed to allocate memory for requested buffer",
            r"CUDA error: out of memory",
        ),
        "There was not enough memory",
        "use smaller sizes (--size), raise --memory-limit if it is set, or use a larger machine",
    ),
    Cause(
        "too-many-processes",
        (r"can't start new thread|libgomp: Thread creation failed|pthread_create failed", r"\[Errno 11\] Resource"),
        "The system starts no further process or thread",
        "raise the limit of processes (ulimit -u, or the container's), or --memory-limit if it is set",
    ),
    Cause(
        "killed",
        (),
        "There was not enough memory",
        "use smaller sizes (--size), raise --memory-limit if it is set, or use a larger machine",
    ),
    Cause(
        "shared-library",
        (r"(?P<what>\S+\.so\S*): cannot open shared object file", r"Could not load this library: (?P<what>\S+)"),
        "The shared library {what} is missing or cannot be loaded",
        "install the package that contains it, or add its folder to LD_LIBRARY_PATH; `exporter doctor` checks the rest",
    ),
    Cause(
        "onnxruntime-crashed",
        (r"\(python\) was ended by SIG(?:SEGV|ABRT)",),
        "onnxruntime crashed, perhaps while it optimized the graph",
        "load the model with fewer optimizations: --graph-optimization extended, basic or none",
        only=("onnx",),
    ),
    Cause(
        "illegal-instruction",
        (r"[Ii]llegal instruction",),
        "The artifact was built for a CPU with instructions that this one lacks",
        "export it on the machine that will run it, or on one with an older CPU",
    ),
)
