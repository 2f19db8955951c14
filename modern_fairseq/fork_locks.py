"""A lock for what threads share and a fork copies."""

import os
import threading


def lock_that_forks_wait_for() -> threading.Lock:
    """Return a new lock; a fork begins when it is open, so that in the child it is open and what it guards is whole."""
    lock = threading.Lock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
