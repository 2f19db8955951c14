"""GPAS in the authors' models (dandingsky/GPAS), which are LLaMA's: gates in Pre-LN, sandwich, DeepNorm and Mix-LN."""

from __future__ import annotations

from functools import partial

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.llama_host import LLAMA, llama
from tests.golden_check.tolerances import SHIPPED

GPAS = Authors("dandingsky/GPAS", LLAMA.convert, (*LLAMA.renames, (r"\.gpas_block\.", ".gpas.")))
gated = partial(llama, authors=GPAS, tolerances=SHIPPED)


def _mix_ln(golden: Golden) -> str:
    return f"mix_ln(norm=rms,gpas=layer,alpha={golden.setting('env', 'POST_NUM') / golden.depth('layers')})"


RECIPES = {
    "gpas_preln": gated("pre_ln(norm=rms,gpas=layer)"),
    "gpas_sandwich": gated("sandwich_ln(norm=rms,gpas=layer)"),
    # its norm on top is no part of DeepNorm
    "gpas_deepnorm": gated(
        "deepnet(norm=rms,gpas=layer)",
        authors=Authors(GPAS.repository, GPAS.convert, ((r"^norm\.", "top_norm."), *GPAS.renames)),
        top_norm=True,
    ),
    "gpas_mixln": gated(_mix_ln),
}
