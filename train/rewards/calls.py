"""Function calls as text, and whether they are the expected ones by BFCL's rules.

A response is a list of Python calls with keyword arguments, `[f(a=1), g(b='x')]`. It is read with
`ast` and taken apart: nothing of it is ever run. A look at its words comes first and lets nothing
through that a list of calls does not need, so that the parser never meets text that nests deeply;
a verdict takes some 50 microseconds, a few milliseconds at worst, and needs no worker process.

The rules are those of `bfcl_eval` 2026.3.23 (`ast_parse`, `ast_checker`, Python categories, order
of parallel calls free). What differs, all of it stricter:

- Values are strings, plain decimal numbers, True, False, None, lists, tuples, dicts, and names,
  which mean their own text. BFCL also takes arithmetic, which it evaluates, calls, subscripts and
  `...`, mostly as their text, and Python's other spellings: triple quotes, prefixes, hexadecimals.
- Positional arguments, which BFCL drops, and a repeated argument, of which it takes the last, make
  a response unreadable; so do comments.
- At most `MAX_CHARACTERS` characters and `MAX_NESTING` open brackets.

Elsewhere the two agree: on each of 30,000 answers to BFCL's questions with values, types, arguments
and order changed at random, about half of them right, ours gave the published checker's verdict.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import kwlist
from typing import Any

MAX_CHARACTERS = 4096  # BFCL's longest answer has some 800
MAX_NESTING = 12  # BFCL's deepest answer has 4

PYTHON_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,  # JSON has no tuples, so accepted values are lists
    "dict": dict,
    "any": str,
}

# All that a list of calls is made of. Nothing but brackets can nest: there are no operators, a
# minus stands after a bracket or a separator, dots within a name, and what is called or indexed is
# not called or indexed again.
_WORDS = re.compile(
    r"""\s+
      | [,:=] \s* -?
      | (?P<open> [\[({] ) \s* -?
      | (?P<close> [\])}] ) (?! \s* [\[({] )
      | (?P<name> [^\W\d]\w* ) (?: \. [^\W\d]\w* ){0,8} (?! ['"] )
      | \d[\d_]* (?: \.\d* )? (?: [eE][+-]?\d+ )? (?! \w )
      | ' (?: [^'\\\n] | \\. )* ' (?! ['"] )
      | " (?: [^"\\\n] | \\. )* " (?! ['"] )
      | (?P<other> . )""",
    re.VERBOSE,
)
_OPERATORS = frozenset(kwlist) - {"None", "True", "False"}
_IGNORED = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a documented function.

    Attributes:
        type: A key of `PYTHON_TYPES`.
        items: The same for the elements of an array or tuple, else None.
        required: Whether every call must have it.
        choices: The values that the document lists, none where it is silent.
    """

    type: str
    items: str | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """A documented function: its name, dots included, and its parameters by name, in order."""

    name: str
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class ExpectedCall:
    """A call that a right response has.

    Attributes:
        function: The called function.
        accepted: The accepted values of each argument; `""` among them: it may be absent. Within a
            dict, each key has such a list too.
    """

    function: Function
    accepted: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Call:
    """A call that a response has."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What is right about a response.

    Attributes:
        match: The calls are the expected ones, in any order.
        names: The called functions are the expected ones, each as often as expected.
        parses: The response is a list of calls.
    """

    match: bool = False
    names: bool = False
    parses: bool = False


def judge(text: str, expected: Sequence[ExpectedCall]) -> Verdict:
    """Compares a response with the expected calls; whatever the text is, nothing is raised."""
    try:
        calls = parse_calls(text)
    except ValueError:
        return Verdict()
    called = Counter(call.name for call in calls)
    names = called == Counter(one.function.name for one in expected)
    return Verdict(match=names and _match(calls, expected), names=names, parses=True)


def parse_calls(text: str) -> list[Call]:
    """Reads a list of calls; as for BFCL, the brackets and a fence around it may be missing.

    Raises:
        ValueError: The text is something else, or passes a bound.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"calls: found {len(text)} characters, allowed: {MAX_CHARACTERS}")
    text = text.strip("`\n ")
    text = f"{'' if text.startswith('[') else '['}{text}{'' if text.endswith(']') else ']'}"
    _check_words(text)
    try:
        with warnings.catch_warnings():  # a stray backslash in a string is no concern of the user's
            warnings.simplefilter("ignore")
            body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"calls: found {type(error).__name__}, allowed: a list of calls") from None
    if not isinstance(body, ast.List):
        raise _refused(body)
    return [_call(node) for node in body.elts]


def _check_words(text: str) -> None:
    """Raises where the text holds more than a list of calls may, or nests too deeply."""
    depth = 0
    for word in _WORDS.finditer(text):
        depth += (word.lastgroup == "open") - (word.lastgroup == "close")
        if depth > MAX_NESTING:
            raise ValueError(f"calls: found over {MAX_NESTING} open brackets, allowed: fewer")
        if word.lastgroup == "other" or word["name"] in _OPERATORS:
            raise ValueError(f"calls: found {word[0]!r}, allowed: calls with literal values")


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise _refused(node)
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise _refused(node)
        arguments[keyword.arg] = _value(keyword.value)
    return Call(_dotted(node.func), arguments)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise _refused(node)
    return ".".join([node.id, *reversed(parts)])


def _value(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=name):
            return name
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(one) for key, one in zip(keys, values, strict=True)}
    raise _refused(node)


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise _refused(node)


def _refused(node: ast.AST | None) -> ValueError:
    return ValueError(f"calls: found {type(node).__name__}, allowed: calls with literal values")


def _match(calls: Sequence[Call], expected: Sequence[ExpectedCall]) -> bool:
    """Each expected call, in turn, takes the first call left that fits it."""
    left = list(calls)
    for one in expected:
        fitting = next((i for i, call in enumerate(left) if _fits(call, one)), None)
        if fitting is None:
            return False
        del left[fitting]
    return not left


def _fits(call: Call, expected: ExpectedCall) -> bool:
    parameters, accepted = expected.function.parameters, expected.accepted
    return (
        call.name == expected.function.name
        and all(name in call.arguments for name, one in parameters.items() if one.required)
        and all(name in call.arguments or "" in values for name, values in accepted.items())
        and all(
            name in parameters
            and name in accepted
            and _accepts(parameters[name], value, accepted[name])
            for name, value in call.arguments.items()
        )
    )


def _accepts(parameter: Parameter, value: Any, accepted: Sequence[Any]) -> bool:
    """Whether an argument has the type of its parameter and one of its accepted values.

    Where the accepted values have another type than the document says, BFCL takes them for the
    name of a variable, to be met exactly.
    """
    documented, stated = PYTHON_TYPES[parameter.type], _type_of_first(accepted)
    found = type(value)
    if parameter.type == "tuple" and found is tuple:
        value, found = list(value), list
    if parameter.type == "float" and found is int:
        found = float  # an int equals the float of the same value
    if found is not documented:
        return found is stated and value in accepted
    if parameter.items and not _elements_have_type(parameter.items, value, accepted):
        return False
    if stated not in (None, documented):
        return value in accepted
    if documented is dict:
        return any(one != "" and _dict_accepts(value, one) for one in accepted)
    if documented is list:
        accepted = [one or [] for one in accepted]  # "" is met by an empty list too
    if parameter.items == "dict":
        return any(_dicts_accept(value, one) for one in accepted)
    return _normal(value) in [_normal(one) for one in accepted]


def _type_of_first(accepted: Sequence[Any]) -> type | None:
    """The type of the first accepted value; None where there is none but absence."""
    return next((type(one) for one in accepted if one != ""), None)


def _elements_have_type(documented: str, value: list[Any], accepted: Sequence[Any]) -> bool:
    """One accepted list must agree with the document on the elements' types; ints are no floats."""
    return any(
        not isinstance(one, list)
        or all(type(x) in (PYTHON_TYPES[documented], _type_of_first(one)) for x in value)
        for one in accepted
    )


def _dict_accepts(value: dict[str, Any], accepted: Mapping[str, Sequence[Any]]) -> bool:
    """No key but the accepted ones, each with an accepted value, and none missing that may not."""
    return all(
        key in accepted and _text_normal(one) in map(_text_normal, accepted[key])
        for key, one in value.items()
    ) and all(key in value or "" in values for key, values in accepted.items())


def _dicts_accept(value: list[Any], accepted: Sequence[Any]) -> bool:
    return len(value) == len(accepted) and all(
        isinstance(one, dict) and _dict_accepts(one, other)
        for one, other in zip(value, accepted, strict=True)
    )


def _normal(value: Any) -> Any:
    return list(map(_text_normal, value)) if isinstance(value, list) else _text_normal(value)


def _text_normal(value: Any) -> Any:
    """A text as BFCL compares it: without spaces and some punctuation, in lower case, one quote."""
    if not isinstance(value, str):
        return value
    return _IGNORED.sub("", value).lower().replace("'", '"')
