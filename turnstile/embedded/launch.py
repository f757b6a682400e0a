"""Starts a server program: drops root if the plan says so, asks the kernel to stop it with the warden, and execs it.

The warden runs this as a script (`python -I -S launch.py PLAN PROGRAM ARG…`) in place of a `preexec_fn`, so errors are
written to the server's log. Standard library only; the program keeps this process's pid.
"""

import ctypes
import json
import os
import sys

# linux/prctl.h, linux/securebits.h, linux/capability.h
PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522


def _checked(libc: ctypes.CDLL, call: str, *arguments: object) -> None:
    if libc[call](*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def _capabilities() -> int:
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 pathlib costs as much as this whole script
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))


def become(libc: ctypes.CDLL, user: int, group: int, *, keep_search: bool) -> None:
    """Changes from root to the user. `keep_search` keeps the right to enter closed directories (a venv in /root)."""
    if not keep_search or sys.platform != "linux":
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        return
    held = _capabilities()
    capability = CAP_DAC_READ_SEARCH if held & 1 << CAP_DAC_READ_SEARCH else CAP_DAC_OVERRIDE
    # Without this bit access(2) forgets capabilities for users other than root, and Postgres asks access(2).
    _checked(libc, "prctl", PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    mask = 1 << capability
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)  # effective, permitted, inheritable; low word, high word
    _checked(libc, "capset", header, data)
    _checked(libc, "prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def take_private(path: str) -> dict[str, str]:
    """The environment in the FIFO, which is removed: they were written before the warden was asked to start this."""
    descriptor, line = os.open(path, os.O_RDONLY | os.O_NONBLOCK), b""
    while not line.endswith(b"\n") and (chunk := os.read(descriptor, 65536)):
        line += chunk
    os.close(descriptor)
    os.unlink(path)  # noqa: PTH108 pathlib costs as much as this whole script
    return json.loads(line)


def main() -> None:
    """Never returns: the process becomes the program, or exits with a message in the log."""
    plan, program = json.loads(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if (path := plan.get("private")) is not None:
        variables = take_private(path)
        os.environ.clear()
        os.environ.update(variables)
    if plan["user"] is not None:
        become(libc, plan["user"], plan["group"], keep_search=plan["keep_search"])
    if sys.platform == "linux":
        # Only now: the change of user clears this setting.
        _checked(libc, "prctl", PR_SET_PDEATHSIG, plan["death_signal"], 0, 0, 0)
        if os.getppid() != plan["warden"]:
            sys.exit("the warden died before the program was executed")
    os.execv(program[0], program)  # noqa: S606 the warden names the program


if __name__ == "__main__":
    main()
