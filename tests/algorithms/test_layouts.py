"""Both prompt layouts, garbage, order and labels: what every estimator must not notice. Random episodes by hypothesis."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax.algorithms import advantages, advantages_gae, advantages_istar, advantages_prime, policy_loss, reward_loss, spans

B, T, PER_STEP, GAP = 4, 3, 3, 2  # trajectories, steps, most tokens of a step, observation tokens before each
GROUP = np.array([0, 1, 0, 1])
few = hypothesis.settings(max_examples=8, deadline=None, database=None, derandomize=True)
# Tokens of each step; a trajectory has the steps before its first 0.
episodes = st.lists(st.lists(st.integers(0, PER_STEP), min_size=T, max_size=T), min_size=B, max_size=B)


class Episodes:
    """Random episodes in both layouts: a whole trajectory a row, and one row a step, shuffled, with a row of padding."""

    def __init__(self, lengths, seed):
        rng = np.random.default_rng(seed)
        lengths = [row[: row.index(0)] if 0 in row else row for row in lengths]
        self.step_mask = np.array([[t < len(row) for t in range(T)] for row in lengths])
        self.tokens = [(b, t, p) for b, row in enumerate(lengths) for t, n in enumerate(row) for p in range(n)]
        full = {(b, t, p): (b, sum(lengths[b][:t]) + GAP * (t + 1) + p) for b, t, p in self.tokens}
        rows = rng.permutation(B * T)
        window = {(b, t, p): (rows[b * T + t], GAP + p) for b, t, p in self.tokens}
        self.full = self._arrays(full, (B, T * (PER_STEP + GAP)))
        self.window = self._arrays(window, (B * T + 1, PER_STEP + GAP))

    def _arrays(self, places, shape):
        mask, step, trajectory = np.zeros(shape, bool), np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
        for (b, t, _), (r, l) in places.items():
            mask[r, l], step[r, l], trajectory[r] = True, t, b
        where = tuple(np.array([places[token] for token in self.tokens], int).reshape(-1, 2).T)
        return spans.Layout(jnp.asarray(mask), jnp.asarray(trajectory), jnp.asarray(step)), where

    def values(self, seed):
        """One random number a token, in both layouts, with nan wherever there is no action token."""
        flat = np.random.default_rng(seed).normal(size=len(self.tokens)).astype(np.float32)
        arrays = []
        for layout, where in (self.full, self.window):
            array = np.full(layout.action_mask.shape, np.nan, np.float32)
            array[where] = flat
            arrays.append(jnp.asarray(array))
        return flat, *arrays


jitted = functools.cache(jax.jit)


def on_tokens(episode, function, *pairs):
    """function(layout, *arrays) in both layouts, token by token; asserts that they agree and are 0 elsewhere."""
    results = []
    for index, (layout, where) in enumerate((episode.full, episode.window)):
        out = np.asarray(jitted(function)(layout, *(pair[index] for pair in pairs)))
        np.testing.assert_array_equal(out[~np.asarray(layout.action_mask)], 0.0)
        results.append(out[where])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    return results[0]


def discounted(layout, x):
    return spans.discounted_sum(x, layout, 0.9)


def gae(layout, rewards, values):
    return advantages_gae.tokens(rewards, values, layout, 0.9, 0.8)[0]


@few
@hypothesis.given(episodes, st.integers(0, 1000))
def test_running_sums_and_gae_against_loops(lengths, seed):
    episode = Episodes(lengths, seed)
    rewards, *reward_arrays = episode.values(seed)
    values, *value_arrays = episode.values(seed + 1)
    expected_sum, expected_gae = np.zeros(len(rewards)), np.zeros(len(rewards))
    for n in reversed(range(len(rewards))):
        last = n + 1 == len(rewards) or episode.tokens[n + 1][0] != episode.tokens[n][0]
        following = (0.0, 0.0, 0.0) if last else (expected_sum[n + 1], expected_gae[n + 1], values[n + 1])
        expected_sum[n] = rewards[n] + 0.9 * following[0]
        expected_gae[n] = rewards[n] + 0.9 * following[2] - values[n] + 0.72 * following[1]
    np.testing.assert_allclose(on_tokens(episode, discounted, reward_arrays), expected_sum, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(on_tokens(episode, gae, reward_arrays, value_arrays), expected_gae, rtol=1e-5, atol=1e-5)


def step_sums(layout, x):
    return spans.step_sum(x, layout, (B, T))


def last(layout):
    return spans.at_last_tokens(jnp.arange(1.0, 1 + B * T).reshape(B, T), layout)


@few
@hypothesis.given(episodes, st.integers(0, 1000))
def test_sums_and_ratios_by_step_against_loops(lengths, seed):
    episode = Episodes(lengths, seed)
    flat, *arrays = episode.values(seed)
    expected = np.zeros((B, T))
    counts = np.zeros((B, T))
    for (b, t, _), value in zip(episode.tokens, flat, strict=True):
        expected[b, t] += value
        counts[b, t] += 1
    for (layout, _), array in zip((episode.full, episode.window), arrays, strict=True):
        np.testing.assert_allclose(jitted(step_sums)(layout, array), expected, rtol=1e-5, atol=1e-6)
    of_step = np.array([expected[b, t] for b, t, _ in episode.tokens])
    size = np.array([counts[b, t] for b, t, _ in episode.tokens])
    for level, values in (("step_sum", of_step), ("step_mean", of_step / np.maximum(size, 1)), ("token", flat)):
        np.testing.assert_allclose(on_tokens(episode, LEVELS[level], arrays), values, rtol=1e-5, atol=1e-5)
    ends = [0.0 if p + 1 < counts[b, t] else 1.0 + b * T + t for b, t, p in episode.tokens]
    np.testing.assert_array_equal(on_tokens(episode, last), ends)


def log_ratio(level):
    return lambda layout, x: policy_loss.log_ratio(x, jnp.zeros_like(x), layout, level)


LEVELS = {level: log_ratio(level) for level in policy_loss.RATIO_LEVELS}


def prime(layout, x):
    return advantages_prime.leave_one_out(advantages_prime.divide_by_largest_return(x, layout), layout, GROUP, "code")


def token_level(layout, x):
    return advantages_istar.step_advantage(x, layout.action_mask, jnp.asarray(GROUP)[layout.trajectory], "z_score", "group")


@few
@hypothesis.given(episodes, st.integers(0, 1000))
def test_token_estimators_agree_in_both_layouts(lengths, seed):
    episode = Episodes(lengths, seed)
    _, *arrays = episode.values(seed)
    on_tokens(episode, prime, arrays)
    on_tokens(episode, token_level, arrays)


STEP_ESTIMATORS = {
    "group_relative": lambda r, m, g: advantages.group_relative(r, jnp.sum(jnp.where(m, r, 0), 1), m, g, "step", "zero"),
    "leave_one_out": lambda r, m, g: advantages.leave_one_out(r, jnp.sum(jnp.where(m, r, 0), 1), m, g, "trajectory", "zero"),
    "process": advantages.process,
    "istar": lambda r, m, g: advantages_istar.step_advantage(r, m, g, "leave_one_out", "group"),
    "istar_first_row": lambda r, m, g: advantages_istar.step_advantage(r, m, g, "z_score", "first_row"),
    "preference": lambda r, m, g: m * reward_loss.preference_weights(
        reward_loss.trajectory_logits(r, m, "mean"), m[:, 0] & (r[:, 0] > 0), m[:, 0] & (r[:, 0] < 0), g)[:, None],
}


@few
@hypothesis.given(episodes, st.permutations(range(B)), st.permutations(range(B)), st.integers(0, 1000))
def test_order_labels_and_garbage_change_no_step_estimate(lengths, order, labels, seed):
    mask = Episodes(lengths, seed).step_mask
    rewards = np.where(mask, np.random.default_rng(seed).normal(size=(B, T)), np.nan).astype(np.float32)
    order, labels = np.array(order), np.array(labels)
    for name, estimator in STEP_ESTIMATORS.items():
        out = np.asarray(jitted(estimator)(rewards, mask, GROUP))
        np.testing.assert_array_equal(out[~mask], 0.0, err_msg=name)
        moved = np.asarray(jitted(estimator)(np.nan_to_num(rewards, nan=-77.0)[order], mask[order], labels[GROUP][order]))
        np.testing.assert_allclose(moved, out[order], rtol=1e-5, atol=1e-5, err_msg=name)


def test_layouts_of_one_step_episodes_are_the_same_thing():
    mask = jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    rewards, values = jnp.array([[0.0, 1, 5], [2, 5, 5]]), jnp.array([[0.5, 0.25, 5], [1, 5, 5]])
    whole = spans.Layout(mask, jnp.arange(2), jnp.zeros((2, 3), int))
    np.testing.assert_array_equal(jitted(gae)(whole, rewards, values), jitted(gae)(spans.row_local(mask), rewards, values))
    scores = jnp.array([[3.0], [4.0]])
    np.testing.assert_array_equal(jitted(spans.spread)(scores, whole), [[3, 3, 0], [4, 0, 0]])
    np.testing.assert_array_equal(jitted(spans.at_last_tokens)(scores, whole), [[0, 3, 0], [4, 0, 0]])


def test_first_and_last_tokens_by_hand():
    # Steps 3 (two tokens), 5 (two, an observation between them), 9 (one); a row of step 0 alone; padding.
    mask = jnp.array([[0, 1, 1, 0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0, 0, 0, 0], [0] * 9], bool)
    step = jnp.array([[7, 3, 3, 0, 5, 0, 5, 9, 9], [0] * 9, [2] * 9])
    layout = spans.Layout(mask, jnp.arange(3), step)
    first, last = np.zeros((3, 9), bool), np.zeros((3, 9), bool)
    first[0, [1, 4, 7]] = first[1, 2] = last[0, [2, 6, 7]] = last[1, 4] = True
    np.testing.assert_array_equal(jitted(spans.first_tokens)(layout), first)
    np.testing.assert_array_equal(jitted(spans.last_tokens)(layout), last)
