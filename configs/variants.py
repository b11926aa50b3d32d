"""How the words behind the colon of `--config=configs/x.py:alfworld,rloo,smoke` make a config."""

from ml_collections import ConfigDict, config_dict

from configs import bases, sections

ENVIRONMENTS = {"alfworld": sections.alfworld_tiny}


def build(arg: str, **methods: ConfigDict) -> ConfigDict:
    """The locked config of an environment, a base algorithm (GRPO where none is named) and methods: `rspo`, `istar`, `spear`.

    Raises:
        ValueError: an unknown word, or more than one base; names those that exist.
    """
    environment, *words = arg.split(",")
    named = [word for word in words if word in bases.BASES]
    if environment not in ENVIRONMENTS or set(words) - {"smoke", *named} or len(named) > 1:
        raise ValueError(f"unknown variant {arg!r}; use one of {', '.join(ENVIRONMENTS)}, then optionally one of "
                         f"{', '.join(bases.BASES)}, then optionally 'smoke', with commas.")
    config = ENVIRONMENTS[environment]()
    config.update(sections.base_algorithm())
    for name in ("critic", "rspo", "istar", "spear"):
        config[name] = methods.get(name) or config_dict.placeholder(ConfigDict)
    bases.BASES[named[0] if named else "grpo"](config)
    if "smoke" in words:
        sections.smoke(config)
    elif "rspo" not in methods:
        # The episodes that RSPO plays for its 36 updates: a PRM's 512, and 12 loops of 3 * 112 + 128 + 3 * 112.
        config.loop.updates, config.evaluation.every = 79, 20
    return config.lock()
