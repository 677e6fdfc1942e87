"""JSON lines of a model without training."""

import pytest

from ngramrl_jax.trace.jsonl import read_jsonl

GOOD = '{"prompt_ids": [1, 2], "rollouts": [[3], [4, 5]], "rewards": [1, 0], "question": "?"}'


def test_a_line_is_a_prompt_with_its_group(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    steps = read_jsonl(path)
    assert [step.step for step in steps] == [0, 1]
    assert steps[1].reward_N.tolist() == [1, 0]
    assert [(r.prompt_id, r.sibling, r.tokens_N.tolist()) for r in steps[1].rollouts] == [
        (1, 0, [3]),
        (1, 1, [4, 5]),
    ]
    assert steps[0].rollouts[0].prompt_P.tolist() == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "3",
        "{}",
        GOOD.replace("[1, 2]", "[]"),
        GOOD.replace("[1, 2]", "[1.5]"),
        GOOD.replace("[3]", "[-3]"),
        GOOD.replace("[3]", "[]"),
        GOOD.replace("[3]", "[9999999999999999999999]"),
        GOOD.replace("[1, 0]", "[1]"),
        GOOD.replace("[[3], [4, 5]]", "[]"),
    ],
)
def test_any_other_line_is_named(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(ValueError, match=r"t\.jsonl: line 2: found") as error:
        read_jsonl(path)
    assert "\n" not in str(error.value)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "t.jsonl").touch()
    with pytest.raises(ValueError, match="found nothing"):
        read_jsonl(tmp_path / "t.jsonl")
