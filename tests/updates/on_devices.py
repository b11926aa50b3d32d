"""Every train step on a mesh, FSDP TENSOR OUT: rows over its first axis, two micro-batches, gradients and metrics to OUT."""

import dataclasses
import sys

import jax
import numpy as np
import tabular

from rspo_jax import sharding
from rspo_jax.updates import policy

fsdp, tensor, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mesh = sharding.make_mesh(fsdp, tensor)
results = {}


def record(name, gradient, metrics):
    results[name + "/gradient"] = gradient
    results.update({f"{name}/{metric}": value for metric, value in metrics.items()})


with jax.set_mesh(mesh):
    for name, (_, make) in tabular.STEPS.items():
        # Six rows and two of padding, which four devices share.
        microbatches = jax.device_put([tabular.padded(make(seed), 0.0) for seed in (0, 1)], sharding.batch_sharding(mesh))
        record(name, *tabular.gradient(name, microbatches))
    for ratio in ("step_sum", "row"):
        options = dataclasses.replace(tabular.OPTIONS, ratio=ratio, kl_estimator="k3_ratio_weighted")
        microbatch = jax.device_put(tabular.padded(tabular.batch(), 0.0), sharding.batch_sharding(mesh))
        gradient, sums, maxima = policy.make_policy_gradient(tabular.score, options)(tabular.table(2), [microbatch])
        record(ratio, gradient["table"], sums | maxima)
np.savez(out, **jax.device_get(results))
