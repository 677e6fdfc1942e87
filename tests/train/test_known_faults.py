"""Faults of other systems (CASES) in training and rewards: the right value of each."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from models.config import ModelConfig
from models.policy import Qwen3Policy
from models.sharding import make_mesh, shardings
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Rollout, RolloutRequest, Sampling
from train.batching import rollout_batch
from train.checkpoints import Checkpoints
from train.learner import Learner, OptimizerSettings
from train.objectives import grpo
from train.rewards.sql import SqlJob, SqlReward
from train.text import TextCodec

SMALL = ModelConfig(
    model_type="qwen3",
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    rope_scaling=None,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
POLICY = Qwen3Policy(SMALL)
STOP = 2


def learner(**places):
    optimizer = OptimizerSettings(1e-2, warmup_steps=2, total_steps=8)
    return Learner(POLICY, optimizer, grpo(), Sampling(), **places)


LEARNER = learner()  # one for all tests, and batches of few shapes: little to compile


def rollout(prompt, response, sibling=0):
    return Rollout(
        prompt_id=0,
        sibling=sibling,
        prompt_P=np.array(prompt, np.int32),
        tokens_N=np.array(response, np.int32),
        logps_N=np.full(len(response), -1.0, np.float32),
        drafted_N=np.zeros(len(response), bool),
        truncated=False,
        policy_version=0,
        step=0,
        rounds=1,
    )


def batch_of(rollouts, ladder=(12,), micro_rows=2):
    advantage_N = np.linspace(-1.0, 1.0, len(rollouts))
    return rollout_batch(
        rollouts, advantage_N, micro_rows=micro_rows, weights=grpo().weights, ladder=ladder
    )


def some_rollouts(count=4, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rollout(rng.integers(3, 32, 1 + i), rng.integers(3, 32, 9 - 2 * i), i) for i in range(count)
    ]


@pytest.fixture(scope="module")
def params():
    return POLICY.init_params(jax.random.key(0))


def leaves_equal(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def test_a_response_that_stopped_inside_a_draft_is_trained_up_to_its_stop():
    """B15, B53: [7, STOP] counts twice and not once more, in a row as long as its neighbour's."""
    batch = batch_of([rollout([3], [7, STOP]), rollout([3], [7, 9, 9, 8, STOP])])
    short = int(np.argmin(batch.mask_BR[0].sum(axis=1)))
    assert batch.mask_BR[0, short, :3].tolist() == [True, True, False]
    assert batch.mask_BR[0].sum() == 7
    assert batch.tokens_BT[0, short, :4].tolist() == [3, 7, STOP, 0]


def test_sixteen_more_columns_of_padding_change_no_log_probability(params):
    """B34, B35, B39: positions count from the row's first token, and padding is never attended."""
    rows = some_rollouts()
    tight, wide = batch_of(rows), batch_of(rows, ladder=(28,))
    assert wide.tokens_BT.shape[2] == tight.tokens_BT.shape[2] + 16
    filled = replace(wide, tokens_BT=wide.tokens_BT.copy())
    for row in np.ndindex(*filled.start_B.shape):
        end = int(filled.start_B[row] + filled.mask_BR[row].sum())
        filled.tokens_BT[row][end:] = 5  # padding with a real id
    logp = np.asarray(LEARNER.log_probs(params, tight))
    for padded in (wide, filled):
        longer = np.asarray(LEARNER.log_probs(params, padded))
        np.testing.assert_allclose(longer[..., : logp.shape[2]], logp, atol=1e-6)
        assert not longer[..., logp.shape[2] :].any()
    alone = batch_of(rows[:1], micro_rows=1)
    at = np.argwhere(tight.mask_BR.sum(axis=2) == len(rows[0].tokens_N))[0]
    np.testing.assert_allclose(LEARNER.log_probs(params, alone)[0, 0], logp[tuple(at)], atol=1e-6)


def test_nothing_is_put_around_a_prompt(repository, tmp_path):
    """B47: a tokenizer that would add a first and a last token adds none."""
    folder = shutil.copytree(repository / "data" / "tokenizer", tmp_path / "tokenizer")
    plain = TextCodec(folder).encode("<|schema|>a(b)<|question|>Which b?<|sql|>")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|pad|> $A <|end|>", special_tokens=[("<|pad|>", 1), ("<|end|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(tokenizer.encode("a").ids) == 3  # it would
    again = TextCodec(folder).encode("<|schema|>a(b)<|question|>Which b?<|sql|>")
    np.testing.assert_array_equal(again, plain)


@pytest.mark.parametrize(("eos", "stop"), [("<|im_end|>", 151645), ("<|endoftext|>", 151643)])
def test_the_stop_token_is_the_one_that_the_checkpoint_names(shared_data, tmp_path, eos, stop):
    """B47: that of a base model and that of a chat model of Qwen3 differ."""
    folder = shutil.copytree(shared_data / "qwen3_tokenizer", tmp_path / "tokenizer")
    path = folder / "tokenizer_config.json"
    path.chmod(0o644)
    folder.chmod(0o755)
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": eos}))
    codec = TextCodec(folder)
    assert codec.stop_ids == (stop,)
    ids = codec.encode("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n")
    assert ids[[0, -1]].tolist() == [151644, 198]


def test_training_sees_the_sampled_ids_and_not_the_text_tokenised_again(repository):
    """B48: ids that the tokenizer would never make of their text arrive as they were sampled."""
    codec = TextCodec(repository / "data" / "tokenizer")
    sampled = [int(i) for letter in "SELECT name" for i in codec.encode(letter)]
    assert codec.encode(codec.decode(np.array(sampled))).tolist() != sampled
    batch = batch_of([rollout([3, 4], [*sampled, STOP])], ladder=(32,), micro_rows=1)
    assert batch.tokens_BT[0, 0, 2 : 3 + len(sampled)].tolist() == [*sampled, STOP]


def state_on(kind, params, seed=0):
    """A training state with something in every leaf, on one device or on eight."""
    places = {"param_shardings": shardings(params, make_mesh(1, 4, 2))} if kind == "eight" else {}
    rng = np.random.default_rng(seed)

    def filled(leaf):
        values = rng.integers(1, 99, leaf.shape).astype(leaf.dtype)
        return jax.device_put(values, leaf.sharding)

    return jax.tree.map(filled, learner(**places).init(params))


@pytest.mark.parametrize(("saved_on", "restored_on"), [("one", "eight"), ("eight", "one")])
def test_a_state_is_restored_with_the_placement_asked_for(params, tmp_path, saved_on, restored_on):
    """B66, B70: optimizer moments too, onto another number of devices and back onto the same."""
    state = state_on(saved_on, params)
    folder = Checkpoints(tmp_path / "checkpoints", keep=1)
    folder.save(1, state, History().snapshot())
    for kind in (saved_on, restored_on):
        like = state_on(kind, params, seed=1)
        found = folder.newest(like)
        assert found is not None
        assert leaves_equal(jax.device_get(found.state), jax.device_get(state))
        for leaf, wanted in zip(jax.tree.leaves(found.state), jax.tree.leaves(like), strict=True):
            assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_a_schedule_and_its_moments_go_on_where_they_were(params, tmp_path):
    """B69, B73: five updates equal three, a checkpoint, and two more, inside warm-up and decay."""
    batches = [batch_of(some_rollouts(seed=seed)) for seed in range(5)]
    state = LEARNER.init(params)
    for batch in batches:
        state, _ = LEARNER.update(state, batch)
    half = LEARNER.init(params)
    for batch in batches[:3]:
        half, _ = LEARNER.update(half, batch)
    folder = Checkpoints(tmp_path / "checkpoints", keep=1)
    folder.save(3, half, History().snapshot())
    found = folder.newest(LEARNER.init(params))
    assert found is not None
    resumed = found.state
    for batch in batches[3:]:
        resumed, _ = LEARNER.update(resumed, batch)
    assert leaves_equal(resumed, state)
    assert int(resumed.step) == 5


def test_rollouts_go_on_after_every_update(params):
    """B77: the update gives its state away; the sampler never meets a deleted array."""
    settings = EngineSettings(
        slots=2, draft_tokens=2, max_prompt_tokens=4, max_new_tokens=6, stop_ids=(STOP,)
    )
    engine = RolloutEngine(POLICY, NgramDrafter(2, 2, History()), settings)
    asked = [RolloutRequest(0, i, np.array([3, 4], np.int32), 6) for i in range(4)]
    before = jax.device_get(params)

    def sample(params, step):
        return engine.generate(params, asked, seed=0, step=step, policy_version=step)[0]

    state = LEARNER.init(params)
    first = sample(params, 0)
    for step in range(3):
        rollouts = sample(state.params, step)
        state, metrics = LEARNER.update(state, batch_of(rollouts))
        assert float(metrics["logp_gap_max"]) < 1e-4  # B38: sampler and trainer agree
    assert not leaves_equal(jax.device_get(state.params), before)
    again = sample(params, 0)  # the starting policy, as a reference would be
    assert [r.tokens_N.tolist() for r in again] == [r.tokens_N.tolist() for r in first]


def test_a_response_is_never_python(database, tmp_path, monkeypatch):
    """B83: nothing evaluates a response."""
    monkeypatch.chdir(tmp_path)
    texts = [
        "__import__('os').system('touch evil')",
        "SELECT __import__('os').system('touch evil')",
        "{{ cycler.__init__.__globals__.os.system('touch evil') }}",
        "$(touch evil)",
        "'; touch evil; '",
    ]
    with closing(SqlReward(workers=1)) as reward:
        scores = reward([SqlJob(database, "SELECT a FROM t", text) for text in texts])
    assert [score.reward for score in scores] == [0.0] * len(texts)
    assert [path.name for path in tmp_path.iterdir()] == ["t.sqlite"]


def test_every_response_gets_one_score(database):
    """B59: equal responses are run once, and each still has a score of its own."""
    texts = ["SELECT 1", "SELECT 2", "SELECT 1", "nonsense", "SELECT 1"]
    with closing(SqlReward(workers=2)) as reward:
        scores = reward([SqlJob(database, "SELECT a FROM t", text) for text in texts])
        assert reward([]) == []
    assert [score.reward for score in scores] == [1.0, 0.1, 1.0, 0.0, 1.0]
