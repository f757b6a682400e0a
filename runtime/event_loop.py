"""The event loop of a long-running process, and its garbage collector.

uvloop's loop where the package is installed (extra `server`), else asyncio's own: the same interface, a third less CPU
for what goes through sockets. Commands that end by themselves keep asyncio's, which costs no import.
"""

import asyncio
import gc


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
    if again and not gc.get_freeze_count():
        return
    gc.collect()
    gc.freeze()
