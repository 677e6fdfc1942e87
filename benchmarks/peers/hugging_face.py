"""Rollouts by `transformers` on PyTorch: `generate`, plain and with prompt look-up.

    PYTHON hugging_face.py FOLDER       FOLDER is a Hugging Face checkpoint; see `serving` for jobs

Prompt look-up runs one sequence at a time: `generate` refuses a batch there.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402 # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM  # noqa: E402 # pyright: ignore[reportMissingImports]

from benchmarks.peers.serving import Job, Responses, serve, until_stop  # noqa: E402

LOOKED_UP = 10  # tokens of a draft, as the documentation of transformers has it


def main() -> None:
    """Serves both arms on all cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    def generated(job: Job, prompt: Sequence[int], sequences: int, **how: int) -> Responses:
        ids = torch.tensor([list(prompt)])
        sampling = {"do_sample": False}
        if job.temperature:
            sampling = {"do_sample": True, "temperature": job.temperature, "top_k": 0, "top_p": 1.0}
        texts = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_return_sequences=sequences,
            max_new_tokens=job.new_tokens,
            eos_token_id=list(job.stop_ids),
            pad_token_id=job.stop_ids[0],
            **sampling,
            **how,
        )
        return [until_stop(text, job.stop_ids) for text in texts[:, len(prompt) :].tolist()]

    def plain(job: Job) -> Responses:
        torch.manual_seed(job.number)
        return [said for prompt in job.prompts for said in generated(job, prompt, job.group)]

    def look_up(job: Job) -> Responses:
        torch.manual_seed(job.number)
        return [
            generated(job, prompt, 1, prompt_lookup_num_tokens=LOOKED_UP)[0]
            for prompt in job.prompts
            for _ in range(job.group)
        ]

    serve({"transformers": plain, "transformers, prompt look-up": look_up})


if __name__ == "__main__":
    with torch.inference_mode():
        main()
