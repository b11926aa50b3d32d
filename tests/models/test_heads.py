import math

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax.models import heads


def test_prm_head_by_hand():
    # h = [1, 2]; fc1 h + b1 = [2, -1]; gelu(x) = x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2.
    params = {
        "fc1": jnp.array([[1.0, 0.0], [0.5, -1.0]]),
        "b1": jnp.array([0.0, 1.0]),
        "fc2": jnp.array([[0.5], [2.0]]),
        "b2": jnp.array([0.1]),
    }
    gelu = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in (2.0, -1.0)]
    expected = math.tanh(0.5 * gelu[0] + 2.0 * gelu[1] + 0.1)
    np.testing.assert_allclose(heads.prm_head(params, jnp.array([[[1.0, 2.0]]])), [[expected]], rtol=1e-5)


def test_a_fresh_head_says_zero_and_can_learn():
    params = heads.init_prm_head(jax.random.key(0), 8, 16)
    h = jax.random.normal(jax.random.key(1), (5, 8), jnp.bfloat16)
    reward, gradient = jax.value_and_grad(lambda p: heads.prm_head(p, h).sum())(params)
    assert reward == 0.0 and heads.prm_head(params, h).dtype == jnp.float32
    assert np.abs(gradient["fc2"]).max() > 0  # the zero layer moves first
