"""Stacks without fairseq: the library's, and those of PyTorch, transformers, x-transformers and hyper-connections.

Each takes embeddings (B, T, C) through the causal layers of a language model. The sizes are the same, there is no
dropout, and the FFN has GELU (``llama``: SwiGLU of two thirds of the width). All train alike: the mean square of the
output, PyTorch's fused AdamW, half precision by autocast. The flag ``--compile`` compiles any of them, and ``--onednn``
multiplies by oneDNN on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.bench.entries import PRECISIONS, Case, Entry
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.config import given_options
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.speed.matmul_backend import products_by_onednn

STREAMS = 4
FLAGS = ("--compile", "--onednn")
WIRINGS = ("pre_ln", "hyper_connections", "mhc", "attention_residuals")
"""Wirings that other libraries have."""


class Run(nn.Module):
    """A module, and how it is called."""

    def __init__(self, network: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)"""
        return self.call(x)


def load(package: str) -> Any:
    """Return a package that need not be there.

    Raises:
        UserError: it is not installed, or what it needs does not work here.
    """
    if find_spec(package) is None:
        raise UserError(f"not installed (pip install {package.replace('_', '-')})")
    try:
        return import_module(package)
    except Exception as error:
        # whatever goes wrong in there, and in what it imports, is the same news
        raise UserError(f"{package} cannot be imported here: {type(error).__name__}: {error}") from error


def _sizes(case: Case) -> dict[str, Any]:
    return {"depth": case.depths[1], "dim": case.dim, "heads": case.heads}


def ours(entry: Entry, case: Case) -> nn.Module:
    """Return a stack of the library."""
    name, _, options = entry.name.partition("/")
    given = dict(given_options(options))
    sizes = _sizes(case) | {"ffn_dim": case.ffn_dim}
    return build_stack(name, options=given, **sizes, task="language_model", ffn="gelu", batch_first=True)


def pytorch(entry: Entry, case: Case) -> nn.Module:
    """Return PyTorch's own layers, with the norm first."""
    layer = nn.TransformerEncoderLayer(
        case.dim, case.heads, case.ffn_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    stack = nn.TransformerEncoder(layer, case.depths[1], nn.LayerNorm(case.dim), enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(case.tokens, device=torch.device(case.device))
    return Run(stack, lambda x: stack(x, mask=mask, is_causal=True))


def transformers(entry: Entry, case: Case) -> nn.Module:
    """Return GPT-2 or Llama of transformers, fed with embeddings."""
    library = load("transformers")
    common: dict[str, Any] = {"vocab_size": 1, "use_cache": False, "attn_implementation": "sdpa"}
    network: Any
    if entry.name == "gpt2":
        sizes = {"n_layer": case.depths[1], "n_embd": case.dim, "n_head": case.heads, "n_inner": case.ffn_dim}
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config: Any = library.GPT2Config(n_positions=case.tokens, **sizes, **off, **common)
        network = library.GPT2Model(config)
    else:
        # three matrices of two thirds of the width have the parameters of two of the whole
        sizes = {"num_hidden_layers": case.depths[1], "hidden_size": case.dim, "num_attention_heads": case.heads}
        config = library.LlamaConfig(intermediate_size=case.ffn_dim * 2 // 3, **sizes, **common)
        network = library.LlamaModel(config)
    return Run(network, lambda x: network(inputs_embeds=x).last_hidden_state)


X_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "x-transformers": {},
    "x-transformers-mhc": {"num_residual_streams": STREAMS, "hyper_conn_sinkhorn_iters": 20},
    "x-transformers-attention-residuals": {"attn_aggregated_residuals": True},
}


def x_transformers(entry: Entry, case: Case) -> nn.Module:
    """Return a decoder of x-transformers."""
    library = load("x_transformers")
    head = {"attn_dim_head": case.dim // case.heads, "ff_mult": case.ffn_dim / case.dim, "attn_flash": True}
    return library.Decoder(**_sizes(case), **head, **X_TRANSFORMERS[entry.name])  # type: ignore[no-any-return]


def _first_of(attention: nn.Module, x: Tensor) -> Tensor:
    return attention(x)[0]  # type: ignore[no-any-return]


def hyper_connections(entry: Entry, case: Case) -> nn.Module:
    """Return the sub-layers of a Pre-LN stack of ours, in the connections of the library hyper-connections."""
    library = load("hyper_connections")
    make = library.get_init_and_expand_reduce_stream_functions
    if entry.name.endswith("mhc"):
        make = library.mc_get_init_and_expand_reduce_stream_functions
    connect, expand, reduce = make(STREAMS, dim=case.dim)
    gpt2: Any = next(transformers(ENTRIES["gpt2"], case).children())
    branches: list[nn.Module] = []
    for layer in gpt2.h:
        branches.append(nn.Sequential(layer.ln_1, Run(layer.attn, partial(_first_of, layer.attn))))
        branches.append(nn.Sequential(layer.ln_2, layer.mlp))
    layers = nn.Sequential(*(connect(branch=branch, layer_index=i) for i, branch in enumerate(branches)), gpt2.ln_f)
    return Run(layers, lambda x: layers[-1](reduce(layers[:-1](expand(x)))))


ENTRIES = {
    name: Entry(name, maker, about=about)
    for name, maker, about in (
        ("pytorch", pytorch, "nn.TransformerEncoder, norm first"),
        ("gpt2", transformers, "of transformers: Pre-LN"),
        ("llama", transformers, "of transformers: Pre-LN with RMSNorm, rotary positions, SwiGLU, no biases"),
        ("x-transformers", x_transformers, "its default: Pre-LN"),
        ("x-transformers-mhc", x_transformers, f"{STREAMS} streams, 20 Sinkhorn steps"),
        ("x-transformers-attention-residuals", x_transformers, "over all sub-layers; its queries depend on x"),
        ("hyper-connections", hyper_connections, f"lucidrains' library around GPT-2's sub-layers, {STREAMS} streams"),
        ("hyper-connections-mhc", hyper_connections, f"the same with its mHC, {STREAMS} streams"),
    )
}


def parse(text: str) -> Entry:
    """Return the entry that ``text`` names: one of :data:`ENTRIES`, or a wiring, NAME or NAME/k=v,...

    Raises:
        UserError: it is none; the message says what is valid.
    """
    if text in ENTRIES:
        return ENTRIES[text]
    name, _, options = text.partition("/")
    try:
        Wiring.parse(name, options)
    except UserError as error:
        raise UserError(f"{error}; beside wirings there are {', '.join(ENTRIES)}") from error
    return Entry(text, ours)


def check(entry: Entry, case: Case) -> None:
    """Refuse what no stack here does.

    Raises:
        UserError: a flag is unknown, or the depth is that of a pair.
    """
    if unknown := [flag for flag in entry.flags if flag not in FLAGS]:
        raise UserError(f"{entry}: {unknown[0]} is not known; valid are {', '.join(FLAGS)}")
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
