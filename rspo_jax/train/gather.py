"""Fresh groups for one update, and which of them it trains on: DAPO's dynamic sampling, PRIME's and SPEAR's filters.

| config.loop.keep_groups | trains on                                                              |
| all                     | every group                                                            |
| mixed                   | those whose outcomes are not all equal (DAPO)                          |
| between                 | those whose mean outcome lies in 0.2 .. 0.8 (PRIME)                    |
| widest                  | the three quarters with the largest spread of outcomes (SPEAR)         |

Where `mixed` or `between` leaves too few groups, fresh ones are played for the missing, config.loop.sampling_tries times in all.
What was played and left out stays in the rollout, so success rates are those of everything that was played.
"""

from collections.abc import Sequence

import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import filtering
from rspo_jax.rollout import batching, collect
from rspo_jax.train import session as sessions

BETWEEN = (0.2, 0.8)
WIDEST = 0.75


def play(session: sessions.Session, progress: sessions.Progress, params, tasks: int) -> collect.Rollout:
    """Episodes of the agent: groups until so many tasks are worth training on, or the tries are used up."""
    options = session.settings.loop
    rollouts, missing = [], tasks
    while missing > 0 and len(rollouts) < options.sampling_tries:
        episodes = sessions.draw(session, progress, missing, options.group_size)
        rollouts.append(sessions.play(session, params, episodes, "agent", progress.updates))
        if options.sampling_tries > 1:
            missing -= len({t.group for t in keep(session.settings, rollouts[-1].trainable)})
    return collect.Rollout([t for rollout in rollouts for t in rollout.trajectories],
                           {name: sum(rollout.seconds[name] for rollout in rollouts) for name in rollouts[0].seconds})


def keep(settings, trajectories: Sequence[types.Trajectory]) -> list[types.Trajectory]:
    """Those that an update trains on. The filters look at outcomes without penalties."""
    kind = settings.loop.keep_groups
    if kind == "all" or not trajectories:
        return list(trajectories)
    outcome = np.array([t.outcome for t in trajectories], np.float32)
    group, every = batching.group_index(trajectories), np.ones(len(trajectories), bool)
    if kind == "mixed":
        kept = filtering.mixed_groups(outcome, group, every)
    elif kind == "between":
        kept = filtering.groups_between(outcome, group, every, *BETWEEN)
    else:
        kept = filtering.widest_groups(outcome, group, every, WIDEST)
    return [t for t, stays in zip(trajectories, np.asarray(kept), strict=True) if stays]
