"""Ports for processes that tests start."""

import random
import socket

OURS = range(10_000, 30_000)
"""Below those that Linux hands out: a child imports its framework before it listens,
and by then a port that was handed out once may be handed out again."""


def unused_ports(number):
    """Return so many ports of this machine that nobody listens on."""
    found = []
    # Tests are seeded alike in processes that run side by side.
    for port in random.SystemRandom().sample(OURS, 1000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == number:
            return found
    raise AssertionError("nearly all ports are in use")
