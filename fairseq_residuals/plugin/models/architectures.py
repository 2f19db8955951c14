"""Architecture names, generated: every variant in every size of every family.

``transformer_b2t_wmt_en_de_18l`` is variant b2t, the dimensions of fairseq's ``transformer_wmt_en_de``, 18 layers in
encoder and decoder; ``12l_6l`` names both. Any flag given beside ``--arch`` wins over the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture
from fairseq.models.speech_to_text.s2t_transformer import base_architecture as s2t_base
from fairseq.models.transformer_lm import base_lm_architecture

from fairseq_residuals.plugin.models.args import resolve
from fairseq_residuals.plugin.models.families import Family
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring

ARCHITECTURES: dict[str, partial[dict[str, Wiring]]] = {}
"""The functions, by name, that complete settings in place and return the wiring of each stack."""

Bases = dict[str, Callable[[Any], None]]
"""fairseq's function that fills in the dimensions, by the part of the name that selects it."""


def translation_bases() -> Bases:
    names = {"": "transformer"} | {c: f"transformer_{c}" for c in ("iwslt_de_en", "wmt_en_de", "wmt_en_de_big")}
    return {corpus: ARCH_CONFIG_REGISTRY[name] for corpus, name in names.items()}


def language_model_bases() -> Bases:
    return {"": base_lm_architecture, "wiki103": ARCH_CONFIG_REGISTRY["transformer_lm_wiki103"]}


def speech_bases() -> Bases:
    return {"": s2t_base} | {size: ARCH_CONFIG_REGISTRY[f"s2t_transformer_{size}"] for size in ("xs", "s", "m", "l")}


def depths_of(size: str, stacks: tuple[str, ...]) -> dict[str, int]:
    """Return the layers per stack: "18l" for all, "12l_6l" for encoder and decoder, "" for fairseq's default."""
    numbers = [int(n) for n in re.findall(r"(\d+)l", size)]
    return dict(zip(stacks, numbers * len(stacks) if len(numbers) == 1 else numbers, strict=False))


def register_architectures(family: Family, prefix: str, bases: Bases, sizes: tuple[str, ...]) -> None:
    """Register ``<prefix>_<variant>[_<base>][_<size>]`` with fairseq, for every variant that has a meaning there."""
    alone = "encoder" not in family.stacks
    for variant in (name for name, v in VARIANTS.items() if not v.refusal(alone=alone, topmost=True)):
        for base_name, base in bases.items():
            for size in ("", *sizes):
                name = "_".join(filter(None, (prefix, variant, base_name, size)))
                depths = depths_of(size, family.stacks)
                ARCHITECTURES[name] = partial(resolve, family=family, variant=variant, depths=depths, base=base)
                register_model_architecture(family.model, name)(ARCHITECTURES[name])
