"""The configuration of a run: a closed, typed tree, read by `train.config_file`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from.

    Attributes:
        path: A folder in one of the layouts that the task reads, or a file of prompts;
            mathematics: also a generator, such as reasoning-gym:gsm_symbolic.
        train_items: Training prompts used at most; 0 means all.
        heldout_items: Items of each held-out set used at most; 0 means all.
        run_credit: Reward of a response that does not match, where text2sql's query runs or
            function_calling's functions are the expected ones.
        reward_workers: Processes that compute rewards.
        reward_seconds: Wall-clock limit of one call of a reward of your own.
        chat: Whether prompts go through the checkpoint's chat template, as a user's message.
        thinking: With chat: whether a template that knows it lets the policy think first.
        system: With chat: a system message before it; empty is none.
    """

    path: str = "data/text2sql"
    train_items: int = 0
    heldout_items: int = 0
    run_credit: float = 0.1
    reward_workers: int = 2
    reward_seconds: float = 5.0
    chat: bool = False
    thinking: bool = False
    system: str = ""


@dataclass(frozen=True)
class ModelSection:
    """Which policy is trained.

    Attributes:
        checkpoint: Folder with `config.json`, `tokenizer.json` and Orbax parameters.
        dtype: Compute type, float32 or bfloat16; master weights are float32.
    """

    checkpoint: str = "data/checkpoints/tiny"
    dtype: str = "float32"


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training that makes `model.checkpoint` where it does not exist yet.

    Attributes:
        enabled: Whether a missing checkpoint may be made.
        preset: Architecture, see `models.config`; its vocabulary size is the tokenizer's.
        tokenizer: Tokenizer folder; empty: train one of `vocab_size` on the training items.
        vocab_size: Size of a tokenizer trained here.
        epochs: Passes over the training items, and those for supervised training alone, at most.
        batch: Sequences of one update.
        learning_rate: Constant after a short warm-up.
        stop_accuracy: Stop when a probe, the share of training items that are answered right,
            sampled as `rollout` says, reaches this.
        probe_items: Training items sampled for a probe.
        probe_every: Updates between two probes; 0 means one epoch.
    """

    enabled: bool = False
    preset: str = "tiny"
    tokenizer: str = ""
    vocab_size: int = 2048
    epochs: int = 40
    batch: int = 32
    learning_rate: float = 1e-3
    stop_accuracy: float = 0.45
    probe_items: int = 128
    probe_every: int = 0


@dataclass(frozen=True)
class RolloutConfig:
    """How rollouts are sampled; the words are those of `EngineSettings` and `Sampling`.

    Attributes:
        slots: Rows of the device batch; 0 is as many as the device's memory allows, never more than
            a step has rollouts (a device that does not report its memory, such as a CPU, refuses).
        draft_tokens: Draft budget K; 0 is plain decoding.
        draft_length: fixed verifies K tokens in every round; auto chooses each round's length up
            to K by what it promises a second. `deterministic` fixes it, and where it does not,
            prefetching asks for fixed.
        max_prompt_tokens: Items with longer prompts are left out, and counted.
        max_new_tokens: Response tokens at most.
        temperature: Of the adjusted distribution.
        top_k: Of the adjusted distribution; 0 is off.
        top_p: Of the adjusted distribution; 1 is off.
        verifier: coupled or rejection.
        draft_shape: chain, one continuation of `draft_tokens` tokens, or tree, several that have as
            many together; a tree needs the coupled verifier, draft_length fixed and prefetch off.
        window: Rollouts kept per prompt.
        history_mb: Bound on the whole history, in 2**20 bytes.
        plain_rounds: Plain rounds in one dispatch.
        wave: Siblings of a group that start together.
        prefix_entries: Prompts whose prefix cache is kept on the device, at least one a slot.
        best_tokens: The policy's most likely tokens that come back of each position, for the
            drafter to learn from and for traces.
        prefetch: When drafts are made: off, between rounds; host, while the device works, and the
            host picks among them; device, likewise, and the device picks.
        prefetch_candidates: Outcomes of a row for which drafts are held ready.
    """

    slots: int = 16
    draft_tokens: int = 16
    draft_length: str = "auto"
    max_prompt_tokens: int = 160
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    verifier: str = "coupled"
    draft_shape: str = "chain"
    window: int = 32
    history_mb: int = 256
    plain_rounds: int = 16
    wave: int = 1
    prefix_entries: int = 64
    best_tokens: int = 8
    prefetch: str = "off"
    prefetch_candidates: int = 16


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is maximised.

    Attributes:
        name: grpo, dr_grpo, dapo, gspo or cispo.
        clip_low: The ratio may fall to `1 - clip_low`; null is the objective's own default.
        clip_high: The ratio may rise to `1 + clip_high`; null is the objective's own default.
        kl: Weight of the k3 divergence from the starting policy; 0 is off.
        overlong_buffer: dapo: tokens before the limit over which the penalty grows; 0 is off.
        sampling_rounds: dapo's dynamic sampling: times that prompts are drawn in a step, at most,
            until it has `train.prompts_per_step` groups whose rewards differ; 1 is off.
        correction: What the gap between rollout and training log-probabilities does to the loss:
            off, truncate (importance weights up to the cap) or mask (none above the cap).
        correction_level: Weights per token or per sequence.
        correction_cap: The largest importance weight.
    """

    name: str = "grpo"
    clip_low: float | None = None
    clip_high: float | None = None
    kl: float = 0.0
    overlong_buffer: int = 0
    sampling_rounds: int = 1
    correction: str = "off"
    correction_level: str = "token"
    correction_cap: float = 2.0


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a global-norm clip.

    Attributes:
        learning_rate: Held constant after the warm-up.
        warmup_steps: Linear warm-up from 0.
        weight_decay: Decoupled.
        max_grad_norm: Gradients are scaled down to this norm.
    """

    learning_rate: float = 1e-4
    warmup_steps: int = 2
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class TrainSection:
    """The loop.

    Attributes:
        epochs: Passes over the training prompts.
        steps: Stop after this many steps; 0 means after `epochs`.
        prompts_per_step: Groups in a step.
        group: Rollouts of a prompt, G.
        updates_per_step: Passes over the rollouts of a step.
        minibatches: Parts of a step's groups, each with an optimizer update of its own in a pass.
        micro_batch: Sequences of one forward-backward.
        logprob_chunk: Tokens whose logits exist at the same time.
        remat: Recompute activations of each layer in the backward pass.
        checkpoint_every: Steps between checkpoints; the last step always makes one. Each is written
            beside the steps after it, so a kill costs at most twice as many.
        keep_checkpoints: How many stay on disk: the newest.
        keep_best: How many more stay, the best by held-out accuracy (mean over the sets of the last
            evaluation) or, with `evaluation.every` 0, by the step's mean reward; 0 is none.
        max_refused: Steps in a row whose numbers are not finite that stop the run.
        stuck_after_s: Seconds after which a stage of a step that has not ended is reported, with
            the place where it is; 0 is never.
    """

    epochs: int = 6
    steps: int = 0
    prompts_per_step: int = 16
    group: int = 8
    updates_per_step: int = 1
    minibatches: int = 1
    micro_batch: int = 32
    logprob_chunk: int = 1024
    remat: bool = True
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    keep_best: int = 1
    max_refused: int = 3
    stuck_after_s: float = 1800.0


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out accuracy, greedy unless a temperature is given.

    Attributes:
        every: Steps between evaluations; 0 means at start and end only.
        slots: Rows of the device batch.
        temperature: Of the evaluated samples.
        top_k: Of the evaluated samples; 0 is off.
        top_p: Of the evaluated samples; 1 is off.
    """

    every: int = 0
    slots: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class TraceSection:
    """The rollouts of every step, kept under the run for `python -m ngramrl_jax.replay`.

    Attributes:
        enabled: Whether they are.
        max_mb: Bound on their size on disk, in 2**20 bytes; the oldest steps go.
    """

    enabled: bool = True
    max_mb: int = 1024


@dataclass(frozen=True)
class WandbSection:
    """Rows of the run sent to Weights & Biases, if the package is installed.

    Attributes:
        project: Its name; empty is off.
        mode: online or offline.
    """

    project: str = ""
    mode: str = "online"


@dataclass(frozen=True)
class MeshConfig:
    """How many devices split what; the product is the number of devices that are used.

    Attributes:
        data: Parts into which a micro-batch is split, with the whole policy in each.
        fsdp: Parts into which micro-batch, weights and optimizer are all split.
        tensor: Parts into which heads, feed-forward width and vocabulary are split.
        rollout_tensor: The same while sampling, where the other devices of a process split rows
            and every one of these groups holds the whole policy; 0 is as `tensor`.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    rollout_tensor: int = 0


@dataclass(frozen=True)
class DistributedConfig:
    """Several processes that train one policy.

    Attributes:
        enabled: Whether there are. Without further entries they find each other by what the
            cluster (Slurm, a TPU pod, ...) tells them; `train/launch.py` sets all of these.
        coordinator: host:port of process 0; empty: from the cluster.
        processes: How many there are; 0: from the cluster.
        process: Which one this is; -1: from the cluster.
        timeout_s: Seconds after which a process that is silent counts as dead.
    """

    enabled: bool = False
    coordinator: str = ""
    processes: int = 0
    process: int = -1
    timeout_s: int = 100


@dataclass(frozen=True)
class RunConfig:
    """The whole tree.

    Attributes:
        out: Run folder.
        seed: Of data order and noise.
        deterministic: A run repeats bit for bit on the same machine; what timing could change is
            fixed, such as `rollout.draft_length`.
        task: text2sql, mathematics, function_calling, or your own as path/to/file.py:Name, see
            `train.tasks.registry`.
    """

    out: str = "runs/run"
    seed: int = 0
    deterministic: bool = True
    task: str = "text2sql"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelSection = field(default_factory=ModelSection)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainSection = field(default_factory=TrainSection)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    trace: TraceSection = field(default_factory=TraceSection)
    wandb: WandbSection = field(default_factory=WandbSection)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
