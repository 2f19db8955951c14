"""How this plugin builds the models of golden files that are not fairseq's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.host import Host, HostModel
from tests.golden_check.rebuild import GoldenRecipe
from tests.golden_check.tolerances import HOSTS, Tolerances


@dataclass(frozen=True)
class HostRecipe(GoldenRecipe):
    """A wiring, and what its authors put around it."""

    wiring: str | Callable[[Golden], str]
    """For --residual, or what makes it of the authors' settings."""
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
        return self.wiring if isinstance(self.wiring, str) else self.wiring(golden)

    def build(self, golden: Golden) -> nn.Module:
        return self.model(golden)
