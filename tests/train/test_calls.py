"""Which responses match by BFCL's rules, and that hostile ones cost and do nothing."""

import random
import threading
import warnings

import pytest

from tests.support.clocks import thread_seconds
from train.rewards.calls import ExpectedCall, Function, Parameter, Verdict, judge, parse_calls

LAMP = Function(
    "lamp.set",
    {
        "room": Parameter("string", required=True),
        "level": Parameter("float"),
        "count": Parameter("integer"),
        "on": Parameter("boolean"),
        "tags": Parameter("array", items="string"),
        "sizes": Parameter("array", items="float"),
        "point": Parameter("tuple", items="float"),
        "grid": Parameter("array", items="array"),
        "address": Parameter("dict"),
        "goods": Parameter("array", items="dict"),
        "variable": Parameter("integer"),
    },
)
HALL = {"room": ["hall", "the hall"]}
GOODS = [{"name": ["pear"], "count": [2]}, {"name": ["fig"], "count": ["", 1]}]


def _matches(arguments, **accepted):
    call = ExpectedCall(LAMP, HALL | accepted)
    return judge(f"[lamp.set(room='hall', {arguments})]", [call]).match


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[lamp.set(room='hall')]", True),
        ("lamp.set(room='hall')", True),
        ("```\n[lamp.set(room='hall')]\n```", True),
        ('lamp.set( room = "The  Hall." )', True),
        ("lamp.set(room='hall-way')", False),
        ("lamp.set(room=hall)", True),  # a name means its text
        ("lamp.set(room='')", False),
        ("lamp.set()", False),
        ("lamp.set('hall')", False),
        ("lamp.set('hall', room='hall')", False),
        ("lamp.set(room='hall', room='hall')", False),
        ("lamp.set(**{'room': 'hall'})", False),
        ("lamp.set(room='hall', extra=1)", False),
        ("lamp.set(room='hall', level=1.0)", False),  # documented, but no value is accepted
        ("lamp_set(room='hall')", False),
        ("set(room='hall')", False),
        ("lamp.set(room='hall'), lamp.set(room='hall')", False),
        ("[]", False),
        ("", False),
        ("{'lamp.set': {'room': 'hall'}}", False),
    ],
)
def test_one_call(text, right):
    assert judge(text, [ExpectedCall(LAMP, HALL)]).match is right


@pytest.mark.parametrize(
    ("accepted", "right", "wrong"),
    [
        ({"level": [5.0]}, ["level=5", "level=5.0"], ["level=6", "level='5'", "level=True", ""]),
        ({"level": [-0.5, ""]}, ["level=-0.5", ""], ["level=0.5", "level=None", "level=nan"]),
        ({"count": [5]}, ["count=5"], ["count=5.0", "count='5'", "count=-5", ""]),
        ({"count": [1]}, ["count=1"], ["count=True"]),
        ({"on": [True]}, ["on=True"], ["on=1", "on='True'", "on=true", "on=False"]),
        ({"tags": [["a b", "C"]]}, ["tags=['ab', 'c.']"], ["tags=['c', 'ab']", "tags=['ab']"]),
        ({"tags": [["a"], ""]}, ["tags=['a']", "tags=[]", ""], ["tags=''", "tags=('a',)"]),
        ({"sizes": [[1.0, 2.0]]}, ["sizes=[1.0, 2.0]"], ["sizes=[1, 2]", "sizes=[2.0, 1.0]"]),
        ({"point": [[1.0, 2.0]]}, ["point=(1.0, 2.0)", "point=[1.0, 2.0]"], ["point=(1, 2)"]),
        ({"grid": [[[1, 2], [3]]]}, ["grid=[[1, 2], [3]]"], ["grid=[[1, 2, 3]]", "grid=[1]"]),
        (
            {"address": [{"town": ["Ulm"], "zip": [89073, ""]}]},
            ["address={'town': 'ulm'}", "address={'zip': 89073, 'town': 'Ulm'}"],
            ["address={}", "address={'town': 'Bern'}", "address={'town': 'Ulm', 'x': 1}"],
        ),
        (
            {"goods": [GOODS]},
            [
                "goods=[{'name': 'pear', 'count': 2}, {'name': 'fig'}]",
                "goods=[{'count': 2, 'name': 'Pear'}, {'name': 'fig', 'count': 1}]",
            ],
            ["goods=[{'name': 'pear', 'count': 2}]", "goods=[]", "goods=['pear', 'fig']"],
        ),
        ({"variable": ["len_of"]}, ["variable='len_of'"], ["variable='lenof'", "variable=6"]),
    ],
)
def test_types_and_values(accepted, right, wrong):
    for arguments in right:
        assert _matches(arguments, **accepted), arguments
    for arguments in wrong:
        assert not _matches(arguments, **accepted), arguments


def test_parallel_calls_match_in_any_order():
    expected = [ExpectedCall(LAMP, {"room": [room], "on": ["", True]}) for room in "abca"]
    calls = [f"lamp.set(room='{room}')" for room in "abca"]
    for seed in range(10):
        random.Random(seed).shuffle(calls)
        assert judge(f"[{', '.join(calls)}]", expected) == Verdict(True, True, True)
    assert judge(f"[{', '.join(calls[:3])}]", expected) == Verdict(parses=True)
    wrong = [*calls[:3], "lamp.set(room='d')"]
    assert judge(f"[{', '.join(wrong)}]", expected) == Verdict(names=True, parses=True)


HOSTILE = {
    "a megabyte": "a" * 10**6,
    "a megabyte's number": f"f(a={'1' * 10**6})",
    "10,000 lists": f"f(a={'[' * 10_000}{']' * 10_000})",
    "2,000 lists": f"f(a={'[' * 2_000}{']' * 2_000})",
    "open brackets": "(" * 4_000,
    "a million open brackets": "[" * 10**6,
    "a command": "f(a=__import__('os').system('touch {path}'))",
    "a command for a function": "__import__('os').system(command='touch {path}')",
    "a command in a walrus": "f(a=(b := open('{path}', 'w')))",
    "a command in an f-string": 'f(a=f\'{open("{path}", "w")}\')',
    "half a surrogate pair": "f(a='\ud800')",
    "a NUL": "f(a='\0', b=\0)",
    "towers": "f(a=9**9**9)",
    "a long number": f"f(a={'9' * 4_000})",
    "a negative long number": f"f(b=-{'9' * 4_000})",
    "an exponent": f"f(b=1e{'9' * 3_000})",
    "NaN": "f(a=nan, b=float('nan'))",
    "infinity": "f(b=1e999)",
    "minus signs": f"f(a={'-' * 4_000}1)",
    "minus signs apart": f"f(a={'- ' * 2_000}1)",
    "differences": f"f(a=1{' -1' * 1_300})",
    "negations": f"f(a={'not ' * 1_000}1)",
    "conditions": f"f(a={'1if 1else ' * 400}1)",
    "lambdas": f"f(a={'lambda:' * 550}1)",
    "attributes": f"f{'.x' * 2_000}(a=1)",
    "attributes apart": f"f{' . x' * 1_000}(a=1)",
    "calls of calls": f"f{'()' * 2_000}",
    "calls of calls apart": f"f{'() ' * 1_300}",
    "indices": f"f(a=x{'[0]' * 1_300})",
    "a string that hides brackets": f"f(a='''a'b'''{'[' * 3_000}')",
    "an open string": f"f(a='{'x' * 4_000}",
    "open strings": "'*\\" * 1_300,
    "strings": f"f(a={chr(34) * 4_000})",
    "many calls": "f(a=2)," * 580,
    "many arguments": f"f({','.join(f'a{i}=1' for i in range(550))})",
    "many lists": f"f(a=[{'[],' * 1_300}])",
    "unpacking": f"f({'*a,' * 1_000})",
    "continuations": "f(a=\\\n" * 600,
    "marks without letters": f"f({chr(0x301) * 3_000}=1)",
    "spaces": f"f({' ' * 4_000}a=1" + " " * 10**6,
    "escapes": "f(a='\\d\\N{x}')",
}
INTEGER = ExpectedCall(
    Function("f", {"a": Parameter("integer", required=True), "b": Parameter("float")}),
    {"a": [1], "b": ["", 0.5]},
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_response_scores_nothing_at_once(name, tmp_path):
    text = HOSTILE[name].replace("{path}", str(tmp_path / "made"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not judge(text, [INTEGER, INTEGER]).match
        assert thread_seconds(lambda: judge(text, [INTEGER])) < 0.1  # some milliseconds in fact
        assert not judge(text, [INTEGER]).match
    assert not told
    assert not (tmp_path / "made").exists()


def test_hostile_responses_need_no_deep_stack():
    """A thread with 256 KiB of stack survives them; `ast` alone, given 4,000 signs, does not."""
    seen = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: seen.extend(judge(text, [INTEGER]) for text in HOSTILE.values())
        )
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(seen) == len(HOSTILE)


def test_random_text_is_a_verdict():
    """No exception and no long time, for 4,000 texts of a call's own pieces."""
    pieces = ["f", "(", ")", "[", "]", "{", "}", ",", ":", "=", "-", ".", "'", '"', "\\", " ", "\n"]
    pieces += ["a=", "1", "1.5", "1e", "None", "lambda ", "not ", "if ", "*", "#", "é", "\ud800"]
    rng = random.Random(0)
    for _ in range(4_000):
        some = rng.sample(pieces, rng.randrange(1, 8))
        text = "".join(rng.choices(some, k=rng.randrange(60)))
        assert not judge(text, [INTEGER, INTEGER, INTEGER]).match


def test_parsed_values():
    text = "[a.b(x=[1, -2.5, 'it''s' ], y={'k': (None, True)}, z=name), c()]".replace("''", "\\'")
    first, second = parse_calls(text)
    assert (first.name, second.name) == ("a.b", "c")
    assert first.arguments == {"x": [1, -2.5, "it's"], "y": {"k": (None, True)}, "z": "name"}
    assert second.arguments == {}
