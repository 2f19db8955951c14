"""A campaign against commands that write: killed, on disks that fail, with damaged checkpoints.

After each trial the same command has to go on and end with the same result, or refuse with a sentence. Trials start
from one process that has imported everything (:mod:`zygote`), so that each costs a second and not a start of PyTorch.

- :mod:`commands`: what is tried: training, preparing, averaging, importing, exporting, ``reproduce``
- :mod:`operations`: the operations by which a process changes a disk, counted, failing, or its last
- :mod:`disks`: small and read-only disks
- :mod:`trials`: kills, disks, damage, and what is demanded after each
- :mod:`records`: what came of them, and the table
"""
