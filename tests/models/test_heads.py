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


def test_values_are_read_before_their_tokens():
    # States [1, 2], [3, 4], [5, 6] with weight [1, -2] and bias 10: 7, 5, 3. The last state is before no token.
    params = {"weight": jnp.array([1.0, -2.0]), "bias": jnp.array(10.0)}
    states = jnp.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], jnp.bfloat16)
    np.testing.assert_array_equal(heads.values_before(params, states), [[0.0, 7.0, 5.0]])
    fresh, gradient = jax.value_and_grad(lambda p: heads.values_before(p, states).sum())(heads.init_value_head(2))
    assert fresh == 0.0
    np.testing.assert_array_equal(gradient["weight"], [4.0, 6.0])
