"""iStar: step rewards from an implicit PRM that is trained online beside the policy; and PRIME, with token rewards.

    repeat
        play with pi_old
        r(a_t) = beta log(pi_prm(a_t) / pi_old(a_t))                 by the PRM of the iteration before         (eq. 1)
        A = A_E(outcomes) + step_advantage_coef A_S(r)               over a base estimator                      (eq. 3 to 5)
        update the policy on A                                                                                  (eq. 6)
        update the PRM on the episodes: successes against failures of their group                               (eq. 2)

config.istar.rewards says what the step part is made of; all but the first are the ablations of table 3, and PRIME:

| step        | r of steps, against all steps of the group, in the base's own form                                         |
| token       | r of tokens, against all tokens of the group                                                               |
| merged      | r added to the score before one comparison                                                                 |
| environment | the environment's own step rewards in place of r (gt_process)                                              |
| prime       | r of tokens and the outcome, each against the other members, summed into a return and whitened             |

Over a base that whitens (REINFORCE++ and its baseline form) the two parts are whitened apart, then added.
"""

import dataclasses
import functools
import time
from collections.abc import Sequence

import jax
import numpy as np

from rspo_jax import interrupt, types
from rspo_jax.algorithms import advantages, advantages_istar, advantages_prime, advantages_reinforce, masking, spans
from rspo_jax.rollout import batching
from rspo_jax.train import estimate, evaluate, gather, implicit, learn
from rspo_jax.train import session as sessions

# What a base does with rewards of its own: how it compares them in the group, and whether it whitens the result.
FORMS = {"grpo": ("z_score", False), "dr_grpo": ("centered", False), "rloo": ("leave_one_out", False),
         "reinforce_pp_baseline": ("centered", True), "reinforce_pp": (None, True)}


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint. Returns its params."""
    settings = session.settings
    (step,) = learn.make_steps(session, settings.optimizer.learning_rate)
    prm_step = implicit.make_step(session)
    progress = sessions.Progress()
    agent, prm = learn.new_learner(session), implicit.new_state(session)
    arrays, host = sessions.restore(session, {"agent": agent, "prm": prm})
    if host:
        agent, prm, progress = arrays["agent"], arrays["prm"], sessions.Progress(**host["progress"])
    else:
        evaluate.if_due(session, agent.policy.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        rollout = gather.play(session, progress, agent.policy.params, settings.loop.tasks_per_update)
        rollout = dataclasses.replace(rollout, trajectories=_scored(session, prm, rollout.trajectories))
        trained = gather.keep(settings, rollout.trainable)
        estimated = step_advantages(session, prm, trained)
        agent, metrics = learn.update(session, step, agent, trained, estimated)
        prm, of_prm = implicit.learn(session, prm_step, prm, rollout.trainable)

        progress.updates += 1
        progress.tick += 1
        learn.record(session, "update", progress.updates, progress, rollout, metrics | of_prm, began)
        evaluate.if_due(session, agent.policy.params, progress.updates)
        sessions.save(session, progress, {"agent": agent, "prm": prm}, {}, now=bool(stop.requested))
    return agent.policy.params


def step_advantages(session: sessions.Session, prm: types.TrainState, trajectories: Sequence[types.Trajectory]):
    """A of iStar eq. 5 for each sampled token; an estimate.Estimated.

    Args:
        prm: as it was before this update.
        trajectories: with the rewards of their steps as dense rewards.
    """
    if not trajectories:
        return estimate.Estimated([], None)
    settings = session.settings
    batch = batching.pad(trajectories, session.full_history)
    outcome = estimate.less_kl(session, trajectories, batch, estimate.outcome_rewards(trajectories))
    compared = estimate.compare(session, trajectories, batch, outcome)
    of_tokens = settings.istar.rewards in ("token", "prime")
    rewards = implicit.token_rewards(session, prm, batch) if of_tokens else batching.step_array(trajectories, "dense_reward")
    episode = estimate.token_advantages(session, trajectories, batch, outcome)
    values = _combined(compared, rewards, episode, settings.istar, settings.advantage)
    return estimate.Estimated(estimate.split(trajectories, batch, np.asarray(values)), None)


def _scored(session, prm, trajectories):
    """With r of each step as its dense reward."""
    if session.settings.istar.rewards == "environment":
        return types.with_dense_rewards(trajectories, batching.step_array(trajectories, "outcome_reward"))
    return types.with_dense_rewards(trajectories, implicit.step_rewards(session, prm, trajectories))


@functools.partial(jax.jit, static_argnames=("options", "base"))
def _combined(compared, rewards, episode, options, base):
    """Advantages of all tokens, [R, L]. rewards: [B, T], or [R, L] for `token` and `prime`. episode: [R, L], A_E."""
    layout, step_mask, coef = compared.layout, compared.step_mask, options.step_advantage_coef
    scores = advantages.step_scores(compared.returns, compared.penalty, 1.0)
    if options.rewards == "prime":
        process = advantages_prime.divide_by_largest_return(rewards, layout)
        process = advantages_prime.leave_one_out(process, layout, compared.group, "code")
        alone = advantages.leave_one_out(scores, compared.returns, step_mask, compared.group, "trajectory", "zero")
        at_end = step_mask & (jax.numpy.cumsum(step_mask[:, ::-1], axis=1)[:, ::-1] == 1)
        outcome = spans.at_last_tokens(jax.numpy.where(at_end, alone, 0.0), layout)
        return advantages_reinforce.reinforce_pp(coef * process + outcome, layout, 1.0)
    of_tokens = options.rewards == "token"
    mask = layout.action_mask if of_tokens else step_mask
    group = compared.group[layout.trajectory] if of_tokens else compared.group
    if options.divide_by_largest:
        rewards = advantages_istar.divide_by_largest(rewards, mask)
    if options.rewards == "merged":
        rewards = scores + coef * rewards
    form, whitened = FORMS[base.estimator]
    if form:
        rewards = advantages_istar.step_advantage(rewards, mask, group, form, options.baseline)
    part = rewards if of_tokens else spans.spread(rewards, layout)
    if whitened:
        part = masking.whiten(part, layout.action_mask)
    return part if options.rewards == "merged" else advantages_istar.combine(episode, part, coef, 1)
