"""Train a policy: `python train/train.py [CONFIG] [key=value ...]`.

CONFIG is a YAML file, `configs/quickstart.yaml` by default; `key=value` changes one of its
entries, e.g. `train.epochs=2 out=runs/short`. A run folder that exists is resumed. Ctrl-C
and SIGTERM save a checkpoint and end the run; a second one ends it at once.
"""

import sys
from pathlib import Path

# Python puts this file's own folder first, where `train` would mean this very file.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from train.ending import fail_in_one_line  # noqa: E402

if __name__ == "__main__":
    with fail_in_one_line():  # from here on a signal ends the command cleanly
        from train.command import main
        from train.loop import run

        main(run, "configs/quickstart.yaml", str(__doc__))
