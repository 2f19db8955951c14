"""How this plugin builds the models of golden files that are not fairseq's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host, HostModel
from tests.golden_check.hosts.surroundings import number
from tests.golden_check.rebuild import GoldenRecipe
from tests.golden_check.tolerances import HOSTS, Tolerances


def with_settings(wiring: str, golden: Golden) -> str:
    """Return a wiring with the numbers of the file's sidecar; "sublayers" are twice its layers per block."""
    asked = re.findall(r"{(\w+)}", wiring)
    settings = {name: number(golden, name) for name in asked if name != "sublayers"}
    if "sublayers" in asked:
        settings["sublayers"] = 2 * number(golden, "layers_per_block")
    if "eps=?" in wiring:
        known = "layer_norm_eps" if "layer_norm_eps" in golden.description["provenance"] else "rms_eps"
        wiring = wiring.replace("eps=?", f"norm_eps={number(golden, known)}")
    return wiring.format(**{name: int(x) if x.is_integer() else x for name, x in settings.items()})


@dataclass(frozen=True)
class HostRecipe(GoldenRecipe):
    """A wiring, and what its authors put around it."""

    wiring: str | Callable[[Golden], str]
    """For --residual, or what makes it of the file. Numbers that the sidecar has stand in braces by their names there,
    and "eps=?" for that of all norms."""
    authors: Authors | Callable[[dict[str, Any]], Authors]
    """The names of the authors' parameters, made those of a checkpoint of :class:`.host.Host`; or what knows them by
    the file's description."""
    activation: Callable[[Tensor], Tensor] = torch.relu
    """Of the FFN; of a gated one it is a :class:`.Gated`."""
    rotary: Literal["", "half", "interleaved"] = ""
    """Which channels of a head rotary positions turn together: i and i + half, or 2i and 2i + 1."""
    query_key_norm: Literal["", "all_heads", "per_head"] = ""
    """Norms of the surroundings on queries and keys (``q_norm``, over all heads ``q_proj.norm``), below rotary
    positions."""
    causal: bool = True
    top_norm: bool = False
    """A norm (``top_norm``) on top of the stack that is no part of the wiring."""
    surroundings: tuple[Callable[[Host, Golden], None], ...] = ()
    """What else the authors put around the wiring, by :mod:`.surroundings`: called with a host that was just built."""
    tolerances: Tolerances = HOSTS
    model: Callable[[Golden], HostModel] = Host
    adapt: Callable[[Golden], Golden] = lambda golden: golden
    """Returns a golden with the authors' conventions turned into this plugin's."""

    def authors_of(self, description: dict[str, Any]) -> Authors:
        return self.authors if isinstance(self.authors, Authors) else self.authors(description)

    def wiring_of(self, golden: Golden) -> str:
        return with_settings(self.wiring, golden) if isinstance(self.wiring, str) else self.wiring(golden)

    def build(self, golden: Golden) -> nn.Module:
        return self.model(golden)
