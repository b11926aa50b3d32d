"""How every train step is made: gradients of a weighted sum, accumulated over micro-batches, then one optimiser step.

A loss is `loss(params, microbatch) -> (value, (sums, maxima))`. `value` and `sums` are sums over the micro-batch whose
global denominators are already in the batch's weights, so they add up over micro-batches and devices to exactly what one
large batch would have given. `maxima` combine by the maximum. An update in which any gradient is not finite moves nothing:
parameters, moments and counter stay as they are, and `skipped_updates` says so.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from rspo_jax import types


def make_gradient(loss):
    """`gradient(params, microbatches) -> (grads, sums, maxima)`, summed over the micro-batches. Compiled once for every
    update that shares it."""
    value_and_grad = jax.value_and_grad(loss, has_aux=True)

    @functools.partial(jax.jit, donate_argnums=1)
    def accumulate(params, grads, batch):
        (value, (sums, maxima)), more = value_and_grad(params, batch)
        return jax.tree.map(jnp.add, grads, more), {"loss": value, **sums}, maxima

    def gradient(params, microbatches):
        grads, sums, maxima = jax.tree.map(jnp.zeros_like, params), [], []
        for batch in microbatches:
            grads, part_sums, part_maxima = accumulate(params, grads, batch)
            sums.append(part_sums)
            maxima.append(part_maxima)
        return grads, jax.tree.map(lambda *x: sum(x), *sums), jax.tree.map(lambda *x: functools.reduce(jnp.maximum, x), *maxima)

    return gradient


def make_update(gradient, optimizer):
    """A train step: `update(state, microbatches) -> (state, metrics)`.

    Args:
        gradient: of make_gradient.
        optimizer: an optax.GradientTransformation.

    Returns:
        update; it donates `state`, which must not be touched again. metrics are on the device: loss, grad_norm,
        skipped_updates, and the sums and maxima of the loss.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def finish(state, grads):
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm)
        steps, opt_state = optimizer.update(grads, state.opt_state, state.params)
        moved = types.TrainState(optax.apply_updates(state.params, steps), opt_state, state.updates + 1)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return state, {"grad_norm": norm, "skipped_updates": 1.0 - finite}

    def update(state, microbatches):
        grads, sums, maxima = gradient(state.params, microbatches)
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
