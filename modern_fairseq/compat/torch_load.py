"""PyTorch: ``torch.load`` refuses what fairseq writes, since 2.6."""

import functools
import types

import torch

from modern_fairseq.loading.checkpoints import load, load_fairseq
from modern_fairseq.proxies import override


def safe_load(module: types.ModuleType) -> None:
    """Replace ``torch.load``, which since torch 2.6 refuses most of fairseq's checkpoints.

    checkpoint_utils.py:315, :878; models/text_to_speech/vocoder.py:191, :220; models/speech_to_text/
    xm_transformer.py:609; data/codedataset.py:346, :348, :380; modules/quantization/pq/em.py:199-205.
    Can go when fairseq > 0.12.2 itself loads with an allow-list.
    """
    override(module, "torch", load=load_fairseq if module.__name__ == "fairseq.checkpoint_utils" else load)


def trust_own_ranks(module: types.ModuleType) -> None:
    """Let ranks send each other any object (distributed/utils.py:770).

    These bytes come from a process of the same job, not from a file, and the same module unpickles what
    other ranks send in all_gather_list; since torch 2.6 the default refuses the DictConfig of every resumed
    run. Can go when fairseq > 0.12.2 passes ``weights_only=False`` itself.
    """
    override(module, "torch", load=functools.partial(torch.load, weights_only=False))
