import jax
import pytest

from rspo_jax import sharding


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(sharding.make_mesh(1, 1)):
        yield


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """The models here are tiny and compiling is all the time; LLVM's optimisations change no semantics."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
