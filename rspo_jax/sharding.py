"""One explicit mesh, and the only table that says which array axis lies on which of its axes.

Code names axes by what they hold ("rows", "heads"); `RULES` maps the names to mesh axes, and no other file writes a
PartitionSpec. The mesh is explicit and always set, also 1x1: an operation whose sharding is ambiguous then fails at
trace time on a laptop instead of costing a silent all-gather on a pod.

    jax.set_mesh(sharding.make_mesh(fsdp=1, tensor=1))

Parameters are stored sharded over both axes; a block gathers a layer's weights over `fsdp` just before it uses them
(`gather`), and the gradient of that gather is the reduce-scatter of FSDP. Activations are sharded over `fsdp` by rows.
"""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

RULES = {
    "rows": "fsdp",  # sequences of a batch, or slots of a cache; also rows and tokens merged, row-major
    "embed": "fsdp",  # the model width of a stored parameter; an activation's width is never sharded
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "layers": None,
    None: None,
}


def make_mesh(fsdp: int, tensor: int) -> jax.sharding.Mesh:
    """The mesh over all devices, with explicit axes. Set it once with `jax.set_mesh`."""
    count = jax.device_count()
    if fsdp < 1 or tensor < 1 or fsdp * tensor != count:
        raise ValueError(
            f"config.mesh.fsdp={fsdp} times config.mesh.tensor={tensor} is not the number of devices, {count}; "
            f"choose two factors of {count}."
        )
    return jax.make_mesh((fsdp, tensor), ("fsdp", "tensor"), axis_types=(AxisType.Explicit, AxisType.Explicit))


def spec(*names: str | None) -> PartitionSpec:
    """The PartitionSpec of an array whose axes have these logical names."""
    if jax.sharding.get_abstract_mesh().empty:
        raise RuntimeError("No mesh is set; call jax.set_mesh(sharding.make_mesh(1, 1)) before the model, also on one device.")
    return PartitionSpec(*(RULES[name] for name in names))


def shard(x: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
    """x laid out by the logical names of its axes."""
    return jax.sharding.reshard(x, spec(*names))


def gather(weight: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
    """A stored parameter with its "embed" axis gathered, ready to multiply activations; the tensor axis stays."""
    return shard(weight, tuple(None if name == "embed" else name for name in names))


def param_shardings(mesh: jax.sharding.Mesh, axes):
    """The NamedSharding of each parameter, from a tree of tuples of logical names (`decoder.param_axes`)."""
    return jax.tree.map(
        lambda names: NamedSharding(mesh, PartitionSpec(*(RULES[name] for name in names))),
        axes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Axis 0, the rows, over `fsdp`; for every array of a batch."""
    return NamedSharding(mesh, PartitionSpec(RULES["rows"]))


def check(config, mesh: jax.sharding.Mesh) -> None:
    """Refuses a mesh that does not divide the model, before anything is allocated.

    Args:
        config: a `models.config.DecoderConfig`.
    Raises:
        ValueError: names the key, both numbers and the remedy.
    """
    fsdp, tensor = mesh.shape["fsdp"], mesh.shape["tensor"]
    sizes = [
        ("key/value heads", config.num_key_value_heads),
        ("rows of the vocabulary", config.vocab_size),
        ("columns of the MLP", config.intermediate_size),
    ]
    for what, size in sizes:
        if size % tensor:
            raise ValueError(
                f"config.mesh.tensor={tensor} does not divide the {size} {what} of this {config.model_type} model; "
                f"use a divisor of {size} and put the other devices on config.mesh.fsdp."
            )
    if config.hidden_size % fsdp:
        raise ValueError(
            f"config.mesh.fsdp={fsdp} does not divide the hidden size {config.hidden_size} of this {config.model_type} model; "
            f"use a divisor of {config.hidden_size}."
        )
