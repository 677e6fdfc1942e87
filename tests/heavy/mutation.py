"""Small faults of a module's source: each mutant changes one place.

What they are is what a slip of the hand could write: another operator, a number one off, a branch
the other way round, a statement left out.
"""

import ast
import copy
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

OPERATORS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
PAIRS = ["min max", "minimum maximum", "any all", "log log1p", "zeros ones", "cumsum cumprod"]
NAMES = {a: b for pair in PAIRS for a, b in (pair.split(), reversed(pair.split()))}
# Functions whose statements may go, but whose numbers are left alone, and why.
STATEMENTS_ALONE = {"warm_up": "kernels are compiled for types, whatever the numbers"}
# Left alone, besides what a message says and the guard of a `zip`: types, what wraps a function.
SKIPPED = {"annotation", "returns", "decorator_list"}


class Mutant(NamedTuple):
    """One fault: where it is, what it changes, and the code of the whole module with it."""

    line: int
    change: str
    code: CodeType


def mutants(source: str, path: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for parent, field, node in _places(tree):
        for new in _variants(node):
            _swap(parent, field, node, new)
            changed = ast.fix_missing_locations(tree)
            change = f"{_text(node)}  ->  {_text(new)}"
            found.append(Mutant(getattr(node, "lineno", 0), change, compile(changed, path, "exec")))
            _swap(parent, field, new, node)
    return found


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """Every node that may change, with the parent and the field that hold it."""
    if isinstance(parent, ast.JoinedStr) or getattr(parent, "arg", "") == "strict":
        return
    if isinstance(parent, ast.FunctionDef) and parent.name in STATEMENTS_ALONE:
        yield from ((parent, "body", node) for node in parent.body)
        return
    for field, value in ast.iter_fields(parent):
        if field in SKIPPED:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield parent, field, node
                yield from _places(node)


def _swap(parent: ast.AST, field: str, old: ast.AST, new: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[next(i for i, node in enumerate(value) if node is old)] = new
    else:
        setattr(parent, field, new)


def _variants(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - one case for a kind of node
    """What may stand in a node's place."""
    match node:
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value + 1.0)
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield _with(node, ops=[*ops[:i], OPERATORS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp() | ast.BoolOp():
            yield _with(node, op=OPERATORS[type(node.op)]())
        case ast.AugAssign():
            yield _with(node, op=OPERATORS[type(node.op)]())
            yield ast.Pass()
        case ast.UnaryOp(operand=operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.Name(id=name) if name in NAMES:
            yield _with(node, id=NAMES[name])
        case ast.Attribute(value=ast.Name(id="np" | "jnp" | "math"), attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Call(func=ast.Attribute(value=owner), args=[], keywords=[]):
            yield owner
        case ast.Call(func=ast.Attribute(attr="stop_gradient"), args=[value]):
            yield value
        case ast.Slice():
            for bound in {"lower", "upper"} & {
                name for name, value in ast.iter_fields(node) if isinstance(value, ast.Name)
            }:
                one_more = ast.BinOp(getattr(node, bound), ast.Add(), ast.Constant(1))
                yield _with(node, **{bound: one_more})
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.UnaryOp):
                yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call(args=[_, *_])) | ast.Delete(targets=[ast.Subscript()]):
            yield ast.Pass()
        case ast.Raise() | ast.Return(value=None):
            yield ast.Pass()
        case ast.Assign(targets=[target]) if not _is_new(target, node.value):
            yield ast.Pass()


def _is_new(target: ast.AST, value: ast.AST) -> bool:
    """Whether an assignment seems to make a name, whose loss any run of the line would show."""
    if not isinstance(target, ast.Name):
        return isinstance(target, ast.Tuple)
    return all(not isinstance(n, ast.Name) or n.id != target.id for n in ast.walk(value))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _text(node: ast.AST) -> str:
    line = ast.unparse(node).splitlines()[0] if not isinstance(node, ast.Pass) else "nothing"
    return line if len(line) <= 90 else line[:87] + "..."


def row(source: str, mutant: Mutant) -> str:
    """What survivors.md begins a mutant's row with: its source line and its change."""
    line = source.splitlines()[mutant.line - 1].strip()
    return "".join(f"| `{cell.replace('|', chr(92) + '|')}` " for cell in (line, mutant.change))
