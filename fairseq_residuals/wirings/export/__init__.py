"""Whole trained models on PyTorch alone, which every format but fairseq's is written from.

Modules import ``core``, ``ops`` and ``variants``; :mod:`.hf_modeling` and :mod:`.hf_tokenizer` import transformers too.
"""
