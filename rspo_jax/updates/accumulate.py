"""How every train step is made: gradients of a weighted sum, accumulated over micro-batches, then one optimiser step.

A loss is `loss(params, microbatch) -> (value, (sums, maxima))`. `value` and `sums` are sums over the micro-batch whose
global denominators are already in the batch's weights, so they add up over micro-batches and devices to exactly what one
large batch would have given. `maxima` combine by the maximum. An update in which any gradient is not finite moves nothing:
parameters, moments and counter stay as they are, and `skipped_updates` says so.
"""

import jax
import jax.numpy as jnp
import optax

from rspo_jax import types


def make_update(loss, optimizer):
    """A train step: `update(state, microbatches) -> (state, metrics)`.

    Args:
        loss: see above.
        optimizer: an optax.GradientTransformation.

    Returns:
        update; it donates `state`, which must not be touched again. metrics are device scalars: loss, grad_norm,
        skipped_updates, and the sums and maxima of the loss.
    """
    gradient = jax.value_and_grad(loss, has_aux=True)

    @jax.jit
    def start(params, batch):
        (value, (sums, maxima)), grads = gradient(params, batch)
        return grads, {"loss": value, **sums}, maxima

    def accumulate(params, total, batch):
        grads, sums, maxima = start(params, batch)
        return (jax.tree.map(jnp.add, total[0], grads), jax.tree.map(jnp.add, total[1], sums),
                jax.tree.map(jnp.maximum, total[2], maxima))

    def finish(state, grads):
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm)
        steps, opt_state = optimizer.update(grads, state.opt_state, state.params)
        moved = types.TrainState(optax.apply_updates(state.params, steps), opt_state, state.updates + 1)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return state, {"grad_norm": norm, "skipped_updates": 1.0 - finite}

    accumulate = jax.jit(accumulate, donate_argnums=1)
    finish = jax.jit(finish, donate_argnums=0)

    def update(state, microbatches):
        first, *rest = microbatches
        total = start(state.params, first)
        for batch in rest:
            total = accumulate(state.params, total, batch)
        grads, sums, maxima = total
        state, metrics = finish(state, grads)
        return state, {**sums, **maxima, **metrics}

    return update


def new_state(params, optimizer):
    """A TrainState at the start of training; it owns a copy of `params`."""
    params = jax.tree.map(jnp.copy, params)
    return types.TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def branch(state):
    """A copy of a whole state, moments included: donating one of the two leaves the other alive."""
    return jax.tree.map(jnp.copy, state)
