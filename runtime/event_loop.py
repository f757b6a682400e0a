"""The event loop of a long-running process, and its garbage collector.

uvloop's loop where the package is installed (extra `server`), else asyncio's own: the same interface, a third less CPU
for what goes through sockets. Commands that end by themselves keep asyncio's, which costs no import.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Mapping

_FULL = 2
_COSTLY_SECONDS = 0.01
_MOST_TIMES = 20


def fast_loop() -> asyncio.AbstractEventLoop:
    """A new loop: uvloop's, or asyncio's where uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 -- the base install is without it
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def spare_collector(*, again: bool = False) -> None:
    """Exempt all objects that exist now from later garbage collections; programs call it once their code is loaded.

    The collector would look through tens of thousands of modules, functions and models again and again: a tenth of the
    CPU of a worker under load, and pauses of 0.1 s. Takes about 0.1 s. With `again` it does nothing unless it was
    called before, so code that loads more later changes no process whose program has not asked for it.
    """
    was_called = any(isinstance(callback, _Sparing) for callback in gc.callbacks)
    if again and not was_called:
        return
    gc.collect()
    gc.freeze()
    if not was_called:
        gc.callbacks.append(_Sparing())


class _Sparing:
    """Exempts what came later, too: code that was loaded at its first use, and what a costly full collection left.

    Without it a full collection holds the loop of a gateway that has served all its addresses for 50 ms. What is
    garbage later, and in a circle, is not collected then; so it is done `_MOST_TIMES` at most.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._times = 0
        self._modules = len(sys.modules)

    def __call__(self, phase: str, about: Mapping[str, int]) -> None:
        if about["generation"] < _FULL or self._times >= _MOST_TIMES:
            return
        if phase == "start":
            if len(sys.modules) != self._modules:  # most of what there is to look through is theirs
                self._modules = len(sys.modules)
                self._exempt()
            self._began = time.thread_time()
        elif time.thread_time() - self._began > _COSTLY_SECONDS:
            self._exempt()

    def _exempt(self) -> None:
        gc.freeze()
        self._times += 1
