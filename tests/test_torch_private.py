"""Private functions of PyTorch: called in one file of each door."""

from __future__ import annotations

import ast
from pathlib import Path

import torch
from torch import Tensor, nn

import fairseq_residuals
from fairseq_residuals.plugin.torch_private import add_all_, zero_all_
from fairseq_residuals.wirings.utils import torch_private

ROOT = Path(fairseq_residuals.__file__).parent
PRIVATE_OF_MODULES = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}


def private_names(path: Path) -> list[str]:
    """Names below ``torch`` with a part that begins with an underscore, or of its operators; and hooks of modules."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            is_private = any(part.startswith("_") and not part.startswith("__") for part in name.split(".")[1:])
            if (name.startswith("torch.") and is_private) or name.startswith("torch.ops."):
                names.append(name)
            if node.attr in PRIVATE_OF_MODULES:
                names.append(name)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._"):
            names.append(str(node.module))
    return names


def test_they_are_called_in_one_file_of_a_door() -> None:
    users = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if private_names(p)}
    assert users == {f"{place}/torch_private.py" for place in ("wirings/utils", "plugin", "lab/utils")}


def test_the_gradient_of_log_softmax() -> None:
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    y = x.log_softmax(0)
    gradient = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, gradient)
    torch.testing.assert_close(torch_private.log_softmax_backward(gradient, y.detach(), 0), expected)


def test_many_tensors() -> None:
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    add_all_(tensors, [torch.ones(2), torch.ones(3)])
    assert [x.tolist() for x in tensors] == [[2.0] * 2, [3.0] * 3]
    zero_all_(tensors)
    assert not any(x.any() for x in tensors)


def test_hooks_are_seen_wherever_they_are() -> None:
    for register in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        assert not torch_private.has_hooks(module)
        getattr(module[1], f"register_{register}")(lambda *args: None)
        assert torch_private.has_hooks(module)


def test_backward_passes_have_numbers() -> None:
    numbers: list[int] = []

    def note(gradient: Tensor) -> None:
        numbers.append(torch_private.backward_pass_number())

    x = torch.ones(2, requires_grad=True)
    x.register_hook(note)
    for _ in range(2):
        (x * 2).sum().backward()
    assert len(set(numbers)) == 2 and torch_private.backward_pass_number() == -1
