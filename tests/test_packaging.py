"""The wheel is the library alone, and the library works without the rest of the checkout."""

import subprocess
import sys
import zipfile

import pytest

PROGRAM = """
import sys
import ngramrl_jax.host.ngram
assert "jax" not in sys.modules, "the host core loaded jax"
import ngramrl_jax.rollout.engine
import ngramrl_jax.stats
assert ngramrl_jax.__file__.startswith(sys.path[0]), ngramrl_jax.__file__
for absent in ("models", "train", "data", "tests"):
    try:
        __import__(absent)
    except ImportError:
        continue
    sys.exit(f"{absent} came along")
assert not {"flax", "optax", "orbax"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=repository,
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_library_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ngramrl_jax"}
    assert "ngramrl_jax/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_library_runs_from_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = f"import sys\nsys.path.insert(0, {str(tmp_path / 'site')!r})\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
