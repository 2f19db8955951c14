"""Stacks without fairseq: the library's, PyTorch's, and GPT-2 of transformers.

Each takes embeddings (B, T, C) through the causal layers of a language model. The sizes are the same, there is no
dropout, and the FFN has GELU. All train alike: the mean square of the output, PyTorch's fused AdamW, half precision by
autocast. The flag ``--compile`` compiles any of them, and ``--onednn`` multiplies by oneDNN on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.bench.entries import HERE, Case, Entry
from fairseq_residuals.lab.bench.others import load
from fairseq_residuals.lab.look.subjects import PRECISIONS
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.speed.matmul_backend import products_by_onednn

FLAGS = ("--compile", "--onednn")
WIRINGS = ("pre_ln", "hyper_connections", "mhc", "attention_residuals")
"""Those that are measured unless others are named; the first is the baseline."""


class Run(nn.Module):
    """A module, and how it is called."""

    def __init__(self, network: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)"""
        return self.call(x)


def ours(entry: Entry, case: Case) -> nn.Module:
    """Return a stack of the library."""
    return build_stack(
        entry.arch,
        depth=case.depths[1],
        dim=case.dim,
        heads=case.heads,
        ffn_dim=case.ffn_dim,
        task="language_model",
        ffn="gelu",
        batch_first=True,
    )


def pytorch(entry: Entry, case: Case) -> nn.Module:
    """Return PyTorch's own layers, with the norm first."""
    layer = nn.TransformerEncoderLayer(
        case.dim, case.heads, case.ffn_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    stack = nn.TransformerEncoder(layer, case.depths[1], nn.LayerNorm(case.dim), enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(case.tokens, device=torch.device(case.device))
    return Run(stack, lambda x: stack(x, mask=mask, is_causal=True))


def gpt2(entry: Entry, case: Case) -> nn.Module:
    """Return GPT-2 of transformers, fed with embeddings."""
    library = load("transformers")
    sizes = {"n_layer": case.depths[1], "n_embd": case.dim, "n_head": case.heads, "n_inner": case.ffn_dim}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = library.GPT2Config(
        n_positions=case.tokens, vocab_size=1, use_cache=False, attn_implementation="sdpa", **sizes, **off
    )
    network = library.GPT2Model(config)
    return Run(network, lambda x: network(inputs_embeds=x).last_hidden_state)


ENTRIES = {
    "pytorch": Entry("pytorch", f"{HERE}.library:pytorch", about="nn.TransformerEncoder, norm first"),
    "gpt2": Entry("gpt2", f"{HERE}.library:gpt2", about="of transformers: Pre-LN"),
}


def parse(text: str) -> Entry:
    """Return the entry that ``text`` names: one of :data:`ENTRIES`, or a wiring, NAME or NAME/k=v,...

    Raises:
        UserError: it is none; the message says what is valid.
    """
    if text in ENTRIES:
        return ENTRIES[text]
    name, _, options = text.partition("/")
    wiring = f"{name}({options})" if options else name
    try:
        Wiring.parse(wiring)
    except UserError as error:
        raise UserError(f"{error}; beside wirings there are {', '.join(ENTRIES)}") from error
    return Entry(text, f"{HERE}.library:ours", arch=wiring)


def check(entry: Entry, case: Case) -> None:
    """Refuse what no stack here does.

    Raises:
        UserError: a flag is unknown, or the depth is that of a pair.
    """
    if unknown := [flag for flag in entry.flags if flag not in FLAGS]:
        raise UserError(f"{entry.name}: {unknown[0]} is not known; valid are {', '.join(FLAGS)}")
    if "-" in case.layers:
        raise UserError(f"--layers {case.layers} is for an encoder and a decoder; these stacks have one number")


class Training:
    """Steps of a stack: as :class:`.fairseq_models.Training`, without fairseq."""

    def __init__(self, model: nn.Module, case: Case, flags: tuple[str, ...]) -> None:
        self.model = model.to(case.device).train()
        self.run = torch.compile(self.model) if "--compile" in flags else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.x = torch.randn(case.sentences, case.tokens, case.dim, device=case.device)
        self.device, self.dtype = torch.device(case.device), PRECISIONS[case.precision]
        self.by_onednn = "--onednn" in flags

    def _products(self) -> AbstractContextManager[None]:
        return products_by_onednn() if self.by_onednn else nullcontext()

    def forward(self) -> Tensor:
        """Return the loss, ()."""
        half = self.dtype != torch.float32
        with self._products(), torch.autocast(self.device.type, self.dtype if half else torch.bfloat16, enabled=half):
            return self.run(self.x).float().square().mean()  # type: ignore[no-any-return]

    def backward(self, loss: Tensor) -> None:
        with self._products():
            loss.backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
