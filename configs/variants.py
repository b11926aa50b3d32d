"""How the words behind the colon of `--config=configs/x.py:alfworld,smoke` make a config."""

from ml_collections import ConfigDict, config_dict

from configs import sections

ENVIRONMENTS = {"alfworld": sections.alfworld_tiny}


def build(arg: str, rspo: ConfigDict | None) -> ConfigDict:
    """The locked config of an environment and a method.

    Raises:
        ValueError: an unknown word; names those that exist.
    """
    environment, *words = arg.split(",")
    if environment not in ENVIRONMENTS or set(words) - {"smoke"}:
        raise ValueError(f"unknown variant {arg!r}; use one of {', '.join(ENVIRONMENTS)}, then optionally ',smoke'.")
    config = ENVIRONMENTS[environment]()
    config.update(sections.base_algorithm())
    config.rspo = config_dict.placeholder(ConfigDict) if rspo is None else rspo
    if "smoke" in words:
        sections.smoke(config)
    return config.lock()
