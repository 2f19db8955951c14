"""Configurations of fairseq-hydra-train with a key at the top that fairseq would leave aside."""

import types
from typing import Any

from fairseq_residuals_errors import UserError, did_you_mean
from modern_fairseq.proxies import replaces

NOT_FAIRSEQS = ("recipe",)
"""Keys that a configuration may have at its top though fairseq looks at none: what is known of a paper's recipe."""


def names_of_groups(module: types.ModuleType) -> None:
    """Refuse a key at the top that fairseq does not know, before anything is made (hydra_train.py:30).

    An override with a plus, which hydra advises, can add one: ``+residual=b2t`` would train another wiring without a
    word. Can go when fairseq > 0.12.2 names what is wrong.
    """

    @replaces(module, "_hydra_main")
    def _hydra_main(original: Any, cfg: Any, **kwargs: Any) -> Any:
        from fairseq.dataclass.configs import FairseqConfig

        valid = sorted(FairseqConfig.__dataclass_fields__.keys() - {"_name"})
        for key in cfg:
            if key not in (*valid, "_name", *NOT_FAIRSEQS):
                near = did_you_mean(str(key), valid) or " (a setting is of a group, as model.dropout is)"
                raise UserError(f"unknown key {key} in the configuration{near}; valid: {', '.join(valid)}")
        return original(cfg, **kwargs)
