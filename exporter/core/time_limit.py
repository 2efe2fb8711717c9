"""A time limit for Python code, of any thread: a call that has not come back by then ends with an exception."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

LEAST_S, TIMES = 10.0, 200.0  # a call may take so many seconds, and so many times as long as an ordinary one


class OutOfTime(BaseException):
    """A call took longer than it was given. No Exception, so that the code which it ends cannot take it for its own."""


@contextlib.contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this thread where the body runs for longer.

    It is raised between two steps of the interpreter: what runs in C++, such as a loop in TorchScript, goes on.
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
    """Seconds that any call of the same kind ends within; the ordinary one is made for that."""
    started = time.perf_counter()
    ordinary()
    return LEAST_S + TIMES * (time.perf_counter() - started)


def said(where: str, limit_s: float) -> str:
    """The note for a model that was stopped."""
    return f"the model does not end where {where}: a call was stopped after {limit_s:.0f} s"
