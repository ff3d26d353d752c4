"""Run a command on a leash: it dies when the process that started it dies, however that dies.

Run as ``python -I -S _leash.py PARENT_PID PRIORITY COMMAND ARGS...``; it becomes the command (exec),
so the pid stays the same.  A separate program and not a ``preexec_fn``, because code between fork
and exec is not safe in a process that has threads.  On Linux the kernel keeps the promise
(``PR_SET_PDEATHSIG``, which survives exec); elsewhere there is no such call and only an orderly
end of the parent ends the command.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, priority, command = int(arguments[0]), arguments[1], arguments[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"cannot tie this process to its parent: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the call above; then nobody would ever send the signal.
    if os.getppid() != parent:
        sys.exit("the parent ended before the command was started")
    if priority == "low":
        os.setpriority(os.PRIO_PROCESS, 0, 10)
    elif priority == "idle" and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # A parent that ignores or blocks signals must not make its children deaf.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the point
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
