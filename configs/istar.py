"""iStar over a base: GRPO where none is named, RLOO in the paper's tables 1 and 3; and PRIME, which shares its loop.

    rspo train --config=configs/istar.py:alfworld,rloo --workdir=runs/istar
    rspo train --config=configs/istar.py:alfworld,rloo,merged --workdir=runs/istar-merged
    rspo train --config=configs/istar.py:alfworld,prime --workdir=runs/prime
"""

from configs import sections, variants

ARMS = ("token", "merged", "environment", "prime")


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, one of ARMS (ablations of table 3,
    and PRIME) and `smoke`."""
    words = arg.split(",")
    istar = sections.istar()
    named = [word for word in words if word in ARMS]
    for word in named:
        words.remove(word)
        istar.rewards = word
    if "prime" in named:
        # PRIME: cross-entropy against the frozen initial policy. Its group filter is --config.loop.keep_groups=between.
        istar.loss, istar.reference = "cross_entropy", "initial"
    config = variants.build(",".join(words), istar=istar)
    return config
