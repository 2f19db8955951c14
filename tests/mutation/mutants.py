"""Small mistakes, put into the functions of ``core`` and ``variants`` one at a time, by their syntax trees."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import fairseq_residuals

ROOT = Path(fairseq_residuals.__file__).parent
CORE = ("attention", "base", "gpas", "layer", "norms", "stack", "value_residual")
"""The modules of ``core`` that compute a stack's output."""
LEFT_OUT = {
    *("extra_repr", "equations_of", "refusal", "value_equations", "_with_number", "learned_sum"),
    *("init_weights", "first_gain", "depth_weights", "layer_output", "segments", "run_plainly"),
}
"""Functions that make text, draw initial weights or serve analyses: no output of a stack depends on them."""
COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_ATTRIBUTE = {
    "first": "last",
    "last": "first",
    "enc_depth": "dec_depth",
    "dec_depth": "enc_depth",
    "layer": "index",
}
SYMMETRIC = {"min", "max", "transpose", "isinstance"}
IGNORED = (ast.Raise, ast.Assert, ast.arguments)


@dataclass(frozen=True)
class Mutant:
    module: str
    """Its path below the package, without ".py"."""
    function: str
    """Qualified name of the outermost function."""
    node: int
    """Which of the function's nodes, in the order of ``ast.walk``."""
    choice: int
    """Which of the node's alternatives."""
    kind: str
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}:{self.node}.{self.choice}"

    def install(self) -> None:
        """Give the function the mistake, wherever it was imported to.

        Raises:
            SyntaxError, ValueError: Python does not take it.
        """
        module = importlib.import_module(f"fairseq_residuals.{self.module.replace('/', '.')}")
        tree = copy.deepcopy(_tree(self.module))
        function = dict(_functions(tree))[self.function]
        target = list(ast.walk(function))[self.node]
        _replace(function, target, _alternatives(target)[self.choice][1])
        code = compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec")
        _unwrapped(module, self.function).__code__ = _find_code(code, self.function)


def all_mutants() -> list[Mutant]:
    """Every mutant of every function, in the order of the files."""
    modules = [f"core/{name}" for name in CORE]
    modules += [f"variants/{path.stem}" for path in sorted((ROOT / "variants").glob("*.py")) if path.stem != "__init__"]
    return [mutant for module in modules for mutant in _mutants_of(module)]


def _mutants_of(module: str) -> Iterator[Mutant]:
    for name, function in _functions(_tree(module)):
        if name.rpartition(".")[2] in LEFT_OUT:
            continue
        ignored = {id(below) for node in ast.walk(function) if _is_ignored(node, function) for below in ast.walk(node)}
        for i, node in enumerate(ast.walk(function)):
            if id(node) in ignored:
                continue
            for j, (kind, replacement) in enumerate(_alternatives(node)):
                before, after = (" ".join(ast.unparse(part).split()) for part in (_head(node), _head(replacement)))
                yield Mutant(module, name, i, j, kind, getattr(node, "lineno", 0), before, after)


def _is_ignored(node: ast.AST, function: ast.FunctionDef) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id in ("logger", "warnings"):
            return True
    types = [other.annotation for other in ast.walk(function) if isinstance(other, ast.AnnAssign)]
    types += [function.returns] if function.returns is not None else []
    return isinstance(node, IGNORED) or any(node is part for part in [*types, *function.decorator_list])


def _head(node: ast.AST) -> ast.AST:
    """Of an ``if``, its condition."""
    return node.test if isinstance(node, ast.If) else node


def _alternatives(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What may stand in the place of ``node``, each with the kind of mistake."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [("sign", ast.BinOp(left, ast.Sub(), right)), ("dropped term", left), ("dropped term", right)]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return [
                ("sign", ast.BinOp(left, ast.Add(), right)),
                ("swapped operands", ast.BinOp(right, ast.Sub(), left)),
            ]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [("scale", ast.BinOp(left, ast.Div(), right)), ("scale", left), ("scale", right)]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return [
                ("scale", ast.BinOp(left, ast.Mult(), right)),
                ("swapped operands", ast.BinOp(right, ast.Div(), left)),
            ]
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return [("sign", ast.BinOp(left, ast.Pow(), ast.UnaryOp(ast.USub(), right))), ("scale", left)]
        case ast.BinOp(left=left, op=ast.BitOr()):
            return [("dropped write", left)]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return [("sign", operand)]
        case ast.Constant(value=bool(value)):
            return [("condition", ast.Constant(not value))]
        case ast.Constant(value=int(value)):
            return [("index", ast.Constant(value + 1))]
        case ast.Constant(value=float(value)):
            return [("scale", ast.Constant(1.5 * value or 0.5))]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return [("condition", ast.Compare(left, [COMPARISONS[type(op)]()], [right]))]
        case ast.IfExp(body=body, orelse=orelse):
            return [("condition", body), ("condition", orelse)]
        case ast.If(test=test, body=body, orelse=orelse):
            return [("condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse))]
        case ast.BoolOp(op=op, values=values):
            return [("condition", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))]
        case ast.Attribute(value=value, attr=attr, ctx=ast.Load()) if attr in OTHER_ATTRIBUTE:
            return [("index", ast.Attribute(value, OTHER_ATTRIBUTE[attr], ast.Load()))]
        case ast.Call():
            return _calls(node)
    return []


def _calls(node: ast.Call) -> list[tuple[str, ast.AST]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    match node.args:
        case [argument] if "norm" in name or "norm" in ast.unparse(node.func).split("[")[0]:
            found: list[tuple[str, ast.AST]] = [("dropped norm", argument)] if "new_norm" not in name else []
            if found and isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Add):
                for inside, outside in ((argument.left, argument.right), (argument.right, argument.left)):
                    moved = ast.Call(node.func, [inside], node.keywords)
                    found.append(("order of norm", ast.BinOp(moved, ast.Add(), outside)))
            return found
        case [argument] if "dropout" in name:
            return [("dropped dropout", argument)]
        case [*_] if name == "range":
            at = min(1, len(node.args) - 1)
            ends = (ast.BinOp(node.args[at], op, ast.Constant(1)) for op in (ast.Add(), ast.Sub()))
            return [("range", ast.Call(node.func, [*node.args[:at], end, *node.args[at + 1 :]], [])) for end in ends]
        case [a, b] if all(isinstance(x, (ast.Name, ast.Attribute, ast.Call, ast.BinOp)) for x in (a, b)):
            swapped: ast.AST = ast.Call(node.func, [b, a], node.keywords)
            return [] if name in SYMMETRIC else [("swapped operands", swapped)]
        case [] if name == "detach" and isinstance(node.func, ast.Attribute):
            return [("missing stop-gradient", node.func.value)]
    return []


def _replace(tree: ast.AST, target: ast.AST, replacement: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, replacement)
                return
            if isinstance(value, list) and any(item is target for item in value):
                setattr(parent, field, [replacement if item is target else item for item in value])
                return
    raise AssertionError("the node is not in the tree")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8"))


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of the module and methods of its classes, by qualified name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef))


def _unwrapped(module: Any, name: str) -> Any:
    """The function itself, below whatever decorates it."""
    *owners, last = name.split(".")
    found: Any = module
    for owner in owners:
        found = vars(found)[owner]
    found = vars(found)[last]
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    return inspect.unwrap(found)


def _find_code(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return _find_code(constant, name)
    raise AssertionError(f"{name} was not compiled")
