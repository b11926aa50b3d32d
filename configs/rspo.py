"""RSPO over GRPO, or over another base.

    rspo train --config=configs/rspo.py:alfworld --workdir=runs/rspo
    rspo train --config=configs/rspo.py:alfworld,gigpo --workdir=runs/rspo-gigpo
    rspo train --config=configs/rspo.py:alfworld,smoke --workdir=/tmp/smoke
"""

from configs import sections, variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, then optionally `smoke`."""
    return variants.build(arg, rspo=sections.rspo())
