"""Starts the program of an MCP server: asks the kernel to end it with its parent, and becomes the program.

It runs as a script (`python -I -S launch_program.py PARENT PROGRAM ARG…`), so that nothing runs between fork and exec
in a process with threads. Standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Never returns: the process becomes the program, or exits with a message."""
    parent, *program = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit("whoever started it is gone")
    try:
        os.execvp(program[0], program)  # noqa: S606 -- the file of servers names the program
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
