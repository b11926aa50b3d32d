import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """The models here are tables and compiling is all the time; LLVM's optimisations change no semantics."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
