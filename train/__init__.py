"""GRPO training on a checkout: commands, tasks, learner, loop, report."""
