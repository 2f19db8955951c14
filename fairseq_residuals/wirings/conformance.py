"""``fairseq-residuals conformance``: what each wiring computes, as files that a port in any framework can be held to.

Sub-layers are linear maps, so that a file says all of a small stack: its input, every parameter, what each sub-layer is
fed and gives, the output, and the gradients of a weighted sum of the output. All numbers are in double precision.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.models import safetensors_package
from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.config import show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, find_variant, list_variants
from fairseq_residuals.wirings.wrap import SUBLAYER_NAMES, wrap

HELP = "write what each wiring computes, for ports to other frameworks"
DEPTH, DIM, HEADS = 4, 8, 2
POSITIONS, SENTENCES = 5, 2
CHECKER = '''\
"""Compare a port with a file of the kit: python check.py KIT.safetensors PORT.safetensors [TOLERANCE]

PORT holds what the port computes, under the names that KIT has: output, and whatever else is to be compared.
"""
import sys
import numpy as np
from safetensors.numpy import load_file

if len(sys.argv) < 3:
    sys.exit(__doc__)
kit, port = load_file(sys.argv[1]), load_file(sys.argv[2])
tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-5
failures = [f"{name} is not in the kit" for name in port.keys() - kit.keys()]
failures += [] if "output" in port else ["the port has no output"]
for name in sorted(port.keys() & kit.keys()):
    if port[name].shape != kit[name].shape:
        failures.append(f"{name} has shape {port[name].shape} instead of {kit[name].shape}")
        continue
    error = np.abs(port[name] - kit[name]).max() / max(np.abs(kit[name]).max(), 1e-30)
    print(f"{error:.1e}  {name}")
    if not error <= tolerance:
        failures.append(f"{name} differs by {error:.1e} of its largest number")
print(*failures, sep="\\n")
sys.exit(bool(failures))
'''


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder, which is made if it is not there")
    parser.add_argument("--wirings", nargs="+", metavar="NAME", help="those to write (all)")


def run(args: argparse.Namespace) -> int:
    names = args.wirings or list_variants()
    for name in names:
        find_variant(name)
    refused = write(args.out, names)
    for name, reason in refused.items():
        print(f"{name}: not written, for {reason}")
    print(f"{args.out}: {len(names) - len(refused)} wirings; check.py compares a port with one")
    return 0


def write(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Write for each wiring NAME.safetensors and NAME.json, and check.py once.

    Returns:
        Why a wiring has no file, by its name: linear maps do not show what it has to see.

    Raises:
        UserError: there is no such wiring, or the package safetensors is missing.
        OSError: a file cannot be written.
    """
    safetensors = safetensors_package()
    folder.mkdir(parents=True, exist_ok=True)
    refused = {}
    for name in names:
        try:
            tensors, description = record(name)
        except UserError as error:
            if name not in VARIANTS:
                raise
            refused[name] = str(error)
            continue
        safetensors.torch.save_file(tensors, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    (folder / "check.py").write_text(CHECKER, encoding="utf-8")
    return refused


def record(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run a small stack of a wiring, and return what it has computed, by name, with its equations.

    Raises:
        UserError: there is no such wiring, or it has to see into sub-layers.
    """
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    alone = bool(VARIANTS[name].refusal(alone=True, topmost=True)) if name in VARIANTS else False
    pair: dict[str, Any] = {"task": "encoder", "other_depth": DEPTH} if alone else {"task": "language_model"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = [[nn.Linear(DIM, DIM, bias=False, dtype=torch.float64) for _ in range(2)] for _ in range(DEPTH)]
        stack = wrap(name, layers, dim=DIM, heads=HEADS, ffn_dim=DIM, **pair).double().eval()
    for parameter in stack.parameters():
        # away from where they start, where some wirings are another one
        parameter.data.add_(0.1 * drawn(*parameter.shape))
    x = drawn(POSITIONS, SENTENCES, DIM).requires_grad_()
    tensors: dict[str, Tensor] = {}
    kinds: tuple[Kind, ...] = ("self", "ffn")
    for i in range(DEPTH):
        for kind in (kind for kind in kinds if kind in stack[i].kinds):
            _watch(stack[i].get_submodule(SUBLAYER_NAMES[kind]), f"{i}.{SUBLAYER_NAMES[kind]}", tensors)
    output = tensors["output"] = stack(x)
    tensors["output_weights"] = drawn(*output.shape)
    (output * tensors["output_weights"]).sum().backward()
    parameters = {"input": x, **dict(stack.named_parameters())}
    tensors |= parameters
    tensors |= {f"gradient.{n}": p.grad for n, p in parameters.items() if p.grad is not None}
    variant = VARIANTS[name]
    description = {
        "wiring": name,
        "paper": variant.paper,
        "equations": variant.equations_of(variant.Config()),
        "symbols": variant.symbols,
        "options": {key: show_value(value) for key, value in vars(variant.Config()).items()},
        "eps": {where: part.eps for where, part in stack.named_modules() if isinstance(getattr(part, "eps", 0), float)},
        "layers": DEPTH,
        "stack": [stack.shape.stack, "pair" if stack.shape.cross else "alone"],
        "shape": ["positions", "sentences", "channels"],
    }
    return {key: value.detach().clone().contiguous() for key, value in tensors.items()}, description


def _watch(module: nn.Module, name: str, tensors: dict[str, Tensor]) -> None:
    """Keep what a sub-layer is fed and what it gives."""

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        tensors[f"{name}.fed"], tensors[f"{name}.given"] = inputs[0], output

    module.register_forward_hook(keep)
