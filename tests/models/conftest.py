import jax
import pytest

from rspo_jax import sharding


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(sharding.make_mesh(1, 1)):
        yield
