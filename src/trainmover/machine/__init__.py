"""The machine program, the local driver, and what they share: child processes, sockets, faults."""
