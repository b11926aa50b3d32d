"""The arrows of the architecture point one way: which of our modules a layer may import, and which packages from outside."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STANDARD = sys.stdlib_module_names

# module prefix -> (our modules that it may import, outside packages)
LAYERS = {
    "rspo_jax.types": ((), ("numpy", "jax")),
    "rspo_jax.sharding": ((), ("jax",)),
    "rspo_jax.algorithms": (("rspo_jax.types", "rspo_jax.algorithms", "rspo_jax.sharding"), ("jax", "chex")),
    "rspo_jax.models": (("rspo_jax.sharding", "rspo_jax.models"), ("jax", "flax", "numpy", "safetensors", "ml_dtypes")),
    "rspo_jax.tokenizer": (("rspo_jax.types",), ("transformers", "tokenizers", "jinja2", "numpy")),
    "rspo_jax.decoding": (("rspo_jax.models", "rspo_jax.sharding", "rspo_jax.algorithms"), ("jax", "numpy")),
    "rspo_jax.generation": (
        ("rspo_jax.models", "rspo_jax.sharding", "rspo_jax.algorithms", "rspo_jax.decoding"), ("jax", "numpy")),
    "rspo_jax.updates": (("rspo_jax.types", "rspo_jax.algorithms", "rspo_jax.updates"), ("jax", "optax")),
    "rspo_jax.rollout": (("rspo_jax.types", "rspo_jax.tokenizer", "rspo_jax.rollout", "envs.protocol", "envs.pool"), ("numpy",)),
    "rspo_jax.checkpoint": (("rspo_jax.types",), ("jax", "numpy", "orbax")),
    "rspo_jax.interrupt": ((), ()),
    "rspo_jax.metrics": (("rspo_jax.types", "rspo_jax.report"), ("numpy", "tensorboardX")),
    "rspo_jax.report": (("rspo_jax.types", "rspo_jax.report"), ("numpy", "rich")),
    "rspo_jax.train": (("rspo_jax", "envs.pool", "envs.protocol"), ("jax", "optax", "numpy", "safetensors")),
    "rspo_jax.cli": (("rspo_jax.train", "rspo_jax.report", "envs"), ("absl", "ml_collections")),
    "configs": (("configs",), ("ml_collections",)),
    "envs.alfworld": (("envs",), ("alfworld", "textworld", "fast_downward", "numpy", "tatsu", "networkx")),
    "envs": (("envs",), ()),
}


def modules():
    for package in ("rspo_jax", "configs", "envs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name != "rspo_jax":
                yield name, path


def imports(path):
    """(module, line) of every import; `from package import module` counts as package.module where that is a module of ours."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                file = ROOT / full.replace(".", "/")
                yield (full if file.with_suffix(".py").exists() or file.is_dir() else node.module), node.lineno


def below(name, prefixes):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("name, path", list(modules()), ids=[name for name, _ in modules()])
def test_arrows_point_one_way(name, path):
    layer = max((prefix for prefix in LAYERS if below(name, [prefix])), key=len)
    ours, outside = LAYERS[layer]
    for module, line in imports(path):
        top = module.split(".")[0]
        if top in ("rspo_jax", "configs", "envs"):
            allowed = below(module, ours)
        else:
            allowed = top in STANDARD or top in outside
        assert allowed, f"{path.relative_to(ROOT)}:{line} imports {module}, which layer {layer} may not"


def test_every_layer_has_a_module():
    names = [name for name, _ in modules()]
    assert all(any(below(name, [layer]) for name in names) for layer in LAYERS)
