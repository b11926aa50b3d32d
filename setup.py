"""Package metadata. Ranges live here; `constraints.txt` pins the exact set that `make install` takes."""

import pathlib

import setuptools

setuptools.setup(
    name="rspo_jax",
    version="0.1.0",
    description="Reinforcement learning of multi-turn LLM agents on TPU pods: RSPO and iStar in JAX",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=setuptools.find_packages(include=["rspo_jax", "rspo_jax.*", "configs", "configs.*", "envs", "envs.*"]),
    package_data={"configs": ["warm_start/*/*"], "rspo_jax": ["report/page/*"]},
    install_requires=[
        "absl-py>=2.1",
        "alfworld>=0.4.2,<0.5",
        "chex>=0.1.92",
        "flax>=0.12.8",
        "jax>=0.10.2,<0.13",
        "jinja2>=3.1",
        "ml-collections>=1.1",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12,<0.13",
        "rich>=13",
        "safetensors>=0.6",
        "tensorboardX>=2.6",
        "textworld>=1.7,<1.8",
        "transformers>=5,<6",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10.2,<0.13"],
        "test": ["hypothesis>=6", "pytest>=8", "pytest-xdist>=3", "ruff>=0.12"],
    },
    entry_points={"console_scripts": ["rspo = rspo_jax.cli:main"]},
)
