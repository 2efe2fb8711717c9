"""Calls in a process that was forked after another call, which has none of the threads that torch had started."""

from __future__ import annotations

import os

import torch

from exporter.core.errors import UsageError


class _TorchThreads:
    """Whether this process was forked from one in which calls may have started torch's threads: it has none of them.

    A call that uses them never returns (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=60035). Nothing tells beforehand
    whether one will, so with more than one thread every call is refused.
    """

    def __init__(self) -> None:
        self.started = self.lost = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.started, self.lost = False, self.lost or self.started

    def require(self) -> None:
        """Raise UsageError if a call may never return. Otherwise note that it may start threads."""
        if torch.get_num_threads() > 1:
            if self.lost:
                raise UsageError(
                    "this process was forked after a call of an artifact, and torch's threads do not survive that",
                    "fork before the first call, or call torch.set_num_threads(1) here",
                )
            self.started = True


_THREADS = _TorchThreads()


def require_threads() -> None:
    """Raise UsageError if a call of torch may never return in this process."""
    _THREADS.require()
