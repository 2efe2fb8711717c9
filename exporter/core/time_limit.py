"""A time limit for Python code in any thread: a call that exceeds it ends with an exception."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

LEAST_S, TIMES = 10.0, 200.0  # the limit is LEAST_S seconds plus TIMES times the duration of an ordinary call


class OutOfTime(BaseException):
    """A call exceeded its time limit. Not an Exception, so that the code that it ends does not catch it."""


@contextlib.contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this thread if the body runs for longer than `seconds`.

    It is raised between two bytecode instructions, so code in C++, such as a loop in TorchScript, is not interrupted.
    """
    thread, guard, stopped = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()

    def stop() -> None:
        with guard:
            if not stopped.is_set():
                stopped.set()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(OutOfTime))

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        yield
    finally:
        with guard:
            if stopped.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # if it has not been raised yet
            stopped.set()
        timer.cancel()
        timer.join()


def of(ordinary: Callable[[], object]) -> float:
    """Return a time limit in seconds for calls like `ordinary`, which is called once to time it."""
    started = time.perf_counter()
    ordinary()
    return LEAST_S + TIMES * (time.perf_counter() - started)


def said(where: str, limit_s: float) -> str:
    """Return the note on a model that was stopped."""
    return f"the model does not return when {where}: a call was stopped after {limit_s:.0f} s"
