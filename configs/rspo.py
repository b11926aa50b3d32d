"""RSPO over GRPO, or over another base.

    rspo train --config=configs/rspo.py:alfworld --workdir=runs/rspo
    rspo train --config=configs/rspo.py:alfworld,gigpo --workdir=runs/rspo-gigpo
    rspo train --config=configs/rspo.py:alfworld,implicit --workdir=runs/rspo-implicit
    rspo train --config=configs/rspo.py:alfworld,smoke --workdir=/tmp/smoke
"""

from configs import sections, variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, `implicit` (the explorer is driven
    by iStar's implicit PRM) and `smoke`."""
    words = arg.split(",")
    rspo = sections.rspo()
    methods = {"rspo": rspo}
    if "implicit" in words:
        words.remove("implicit")
        rspo.dense_signal, methods["istar"] = "implicit_prm", sections.istar()
    return variants.build(",".join(words), **methods)
