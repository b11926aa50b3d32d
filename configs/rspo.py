"""RSPO over GRPO.

    rspo train --config=configs/rspo.py:alfworld --workdir=runs/rspo
    rspo train --config=configs/rspo.py:alfworld,smoke --workdir=/tmp/smoke
"""

from configs import sections, variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally `smoke`."""
    return variants.build(arg, rspo=sections.rspo())
