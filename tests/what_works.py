"""What of PyTorch works with each wiring, as a table: ``python -m tests.what_works results/library/what_works.csv``.

A cell is empty where it works, and the first line of the error where it does not. A row takes about half a minute;
names of wirings after the path write their rows alone.
"""

from __future__ import annotations

import copy
import csv
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard
from torch.export import Dim, export
from torch.func import functional_call, grad, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fairseq_residuals import UserError, build_stack, list_variants, rewire
from fairseq_residuals.wirings.blocks.transformer import TransformerStack
from fairseq_residuals.wirings.core.layer import Layer
from fairseq_residuals.wirings.core.registry import VARIANTS

DIM = 8


def stack_of(name: str) -> TransformerStack:
    """A decoder alone, or an encoder where the wiring is for no other stack, trained by one batch; numbers moved."""
    alone = VARIANTS[name].refusal(alone=True, topmost=True)
    other = {"task": "encoder", "other_depth": 2} if alone else {"task": "language_model"}
    if VARIANTS[name].has_ffn:
        other["ffn"] = "gelu"
    torch.manual_seed(1)
    stack = build_stack(name, depth=2, dim=DIM, heads=2, ffn_dim=16, **other)  # type: ignore[arg-type]
    stack(drawn(3))  # Admin measures its omegas
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return stack


def drawn(length: int, sentences: int = 2) -> Tensor:
    return torch.randn((length, sentences, DIM), generator=torch.Generator().manual_seed(length))


def same_step(found: Callable[[Tensor], Tensor], stack: TransformerStack, lengths: tuple[int, ...] = (4,)) -> None:
    """Check output and gradient against those of the stack itself."""
    for length in lengths:
        x = drawn(length).requires_grad_()
        outs = found(x), stack(x)
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(*(torch.autograd.grad(o.pow(2).sum(), x)[0] for o in outs), rtol=1e-3, atol=1e-4)


def autocast(name: str) -> None:
    stack, x = stack_of(name), drawn(4)
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x)
    out.float().pow(2).mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in stack.parameters())
    torch.testing.assert_close(out.float(), stack(x), rtol=0.1, atol=0.2)


def compiled(name: str) -> None:
    stack = stack_of(name)
    same_step(torch.compile(stack, fullgraph=True, backend="aot_eager"), stack)


def compiled_in_evaluation(name: str) -> None:
    stack, x = stack_of(name).eval(), drawn(4)
    with torch.no_grad():
        found = torch.compile(stack, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(found, stack(x), rtol=1e-4, atol=1e-5)


def compiled_for_all_sizes(name: str) -> None:
    stack = stack_of(name)
    same_step(torch.compile(stack, fullgraph=True, dynamic=True, backend="aot_eager"), stack, (4, 6))


def exported(name: str) -> None:
    stack = stack_of(name).eval()
    program = export(stack, (drawn(5),), dynamic_shapes={"x": {0: Dim("length", min=2, max=64)}})
    torch.testing.assert_close(program.module()(drawn(9)), stack(drawn(9)), rtol=1e-4, atol=1e-5)


def checkpointed(name: str) -> None:
    stack = stack_of(name)
    same_step(lambda x: checkpoint(stack, x, use_reentrant=False), stack)
    apply_activation_checkpointing(by_layer := stack_of(name), check_fn=lambda module: isinstance(module, Layer))
    same_step(by_layer, stack)


def built_without_memory(name: str) -> None:
    stack = stack_of(name).eval()
    with torch.device("meta"):
        empty = copy.deepcopy(stack).to("meta").to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(torch.nan)
    empty.load_state_dict(stack.state_dict())
    torch.testing.assert_close(empty(drawn(4)), stack(drawn(4)), rtol=0, atol=0)


def copied(name: str) -> None:
    stack = stack_of(name).eval()
    for twin in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        torch.testing.assert_close(twin(drawn(4)), stack(drawn(4)), rtol=0, atol=0)


def transformed(name: str) -> None:
    stack, x = stack_of(name).eval(), drawn(4, 3)
    state = dict(stack.named_parameters())

    def loss(state: dict[str, Tensor], sentence: Tensor) -> Tensor:
        return functional_call(stack, state, (sentence.unsqueeze(1),)).pow(2).mean()  # type: ignore[no-any-return]

    each = vmap(grad(loss), in_dims=(None, 1))(state, x)
    expected = torch.autograd.grad(loss(state, x[:, 0]), list(state.values()), materialize_grads=True)
    torch.testing.assert_close([g[0] for g in each.values()], list(expected), rtol=1e-3, atol=1e-5)


def in_data_parallel(name: str) -> None:
    """Two steps, of which the second refuses parameters that the first did not use."""
    stack = stack_of(name)
    parallel = DistributedDataParallel(copy.deepcopy(stack))
    for _ in range(2):
        parallel(drawn(4)).pow(2).sum().backward()
    stack(drawn(4)).pow(2).sum().backward()
    for found, expected in zip(parallel.module.parameters(), stack.parameters(), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(found.grad, 2 * expected.grad, rtol=1e-3, atol=1e-4)


def sharded(name: str) -> None:
    """Layer by layer; what several layers share is a group of its own, and comes first."""
    stack, plain = stack_of(name), stack_of(name)
    layers = [dict(layer.named_modules()) for layer in stack]
    shared = [module for module in layers[0].values() if any(module is other for other in layers[-1].values())]
    inside = {child for module in shared for child in module.modules() if child is not module}
    for module in (*(module for module in shared if module not in inside), *stack, stack):
        fully_shard(module)
    stack(drawn(4)).pow(2).sum().backward()
    plain(drawn(4)).pow(2).sum().backward()
    for found, expected in zip(stack.parameters(), plain.parameters(), strict=True):
        if expected.grad is not None:
            assert found.grad is not None
            torch.testing.assert_close(found.grad.full_tensor(), expected.grad, rtol=1e-3, atol=1e-4)


def kept(name: str) -> None:
    """A model of transformers computes what it computed; of 4 layers, as some wirings differ by pairs or quarters."""
    from tests.models_of_transformers import tiny  # which skips a test where transformers is not installed

    rewire(tiny("llama", num_hidden_layers=4), name)


CHECKS: dict[str, Callable[[str], None]] = {
    "autocast to bfloat16": autocast,
    "compile, fullgraph": compiled,
    "compile, no_grad": compiled_in_evaluation,
    "compile, dynamic": compiled_for_all_sizes,
    "export, open length": exported,
    "recomputation": checkpointed,
    "start on meta": built_without_memory,
    "deepcopy and pickle": copied,
    "torch.func": transformed,
    "DDP": in_data_parallel,
    "FSDP2": sharded,
    "rewire, keep": kept,
}


def outcome(check: Callable[[str], None], name: str) -> str:
    """Return an empty text where a check passes, and otherwise the first line of its error."""
    torch.compiler.reset()
    try:
        check(name)
    except Exception as error:  # whatever PyTorch raises is the finding
        lines = str(error).strip().splitlines() or [""]
        reason = lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {lines[0]}"
        return reason[:200]
    return ""


@contextmanager
def one_process() -> Iterator[None]:
    """Be all processes of a distributed run."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the cells of a table, by wiring and check."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row.pop("wiring"): row for row in csv.DictReader(file)}


def write(path: Path, table: dict[str, dict[str, str]]) -> None:
    """Write a table in the order of the list of wirings."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["wiring", *CHECKS], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"wiring": name, **table[name]} for name in list_variants() if name in table)


def main(path: Path, names: list[str]) -> int:
    """Write the rows of some wirings into a table; the others stay."""
    warnings.simplefilter("ignore")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = read(path) if path.exists() else {}
    with one_process():
        for i, name in enumerate(names, 1):
            table[name] = {check: outcome(run, name) for check, run in CHECKS.items()}
            red = [f"{check}: {reason}" for check, reason in table[name].items() if reason]
            print(f"{i} of {len(names)}: {name}: {'; '.join(red) or 'all work'}", file=sys.stderr)
            write(path, table)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or list_variants()))
