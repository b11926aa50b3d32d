"""What a decoder is: the part of a Hugging Face config.json that the computation depends on, and nothing assumed.

Qwen2/2.5, Qwen3 and Llama 3 are one decoder with three differences: Qwen2 has biases on q, k and v, Qwen3 normalises
the heads of q and k, Llama has neither. Whatever else a config.json asks for is refused by its name.
"""

import dataclasses
from typing import Any

FAMILIES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The names are Hugging Face's. Hashable, so that it can be a static argument."""

    model_type: str  # a key of FAMILIES
    vocab_size: int  # rows of the embedding, padding of the vocabulary included
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_type: str  # "default"
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    compute_dtype: str  # of activations; parameters keep their own dtype and are cast where they are used

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"

    def __post_init__(self):
        if self.model_type not in FAMILIES:
            raise ValueError(f"model_type={self.model_type!r} is not supported; use one of {sorted(FAMILIES)}.")
        if self.rope_type != "default":
            raise ValueError(f"RoPE of type {self.rope_type!r} is not implemented; only 'default' is.")
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"compute_dtype={self.compute_dtype!r}; use 'float32' or 'bfloat16'.")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name}={value!r} is not a positive integer.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; RoPE rotates pairs.")


def from_hf(raw: dict[str, Any], compute_dtype: str) -> DecoderConfig:
    """A DecoderConfig from the dict of a config.json, as written by transformers 4 or 5.

    Raises:
        ValueError: a missing key, or a feature that this decoder does not compute; both by name.
    """
    model_type = _required(raw, "model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"config.json: model_type={model_type!r} is not supported; use one of {sorted(FAMILIES)}.")
    _refuse_unsupported(raw, model_type)
    rope_type, rope_theta = _rope(raw)
    hidden_size, heads = _required(raw, "hidden_size"), _required(raw, "num_attention_heads")
    head_dim = raw.get("head_dim")
    if head_dim is None:  # Qwen2 and old Llama files leave it out; it then is the quotient
        if hidden_size % heads:
            raise ValueError(f"config.json: no head_dim, and hidden_size={hidden_size} is not a multiple of {heads} heads.")
        head_dim = hidden_size // heads
    return DecoderConfig(
        model_type=model_type,
        vocab_size=_required(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_required(raw, "intermediate_size"),
        num_hidden_layers=_required(raw, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_required(raw, "num_key_value_heads"),
        head_dim=head_dim,
        rms_norm_eps=float(_required(raw, "rms_norm_eps")),
        rope_type=rope_type,
        rope_theta=rope_theta,
        max_position_embeddings=_required(raw, "max_position_embeddings"),
        tie_word_embeddings=_required(raw, "tie_word_embeddings"),
        compute_dtype=compute_dtype,
    )


def to_hf(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The dict of a config.json that transformers 4 and 5 both read.

    `rope_theta` and `torch_dtype` are the spellings of version 4, which version 5 still understands; the reverse does
    not hold.

    Args:
        dtype: of the tensors beside it, for example "float32".
    """
    raw = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for ours in ("compute_dtype", "rope_type"):
        del raw[ours]
    raw |= {"architectures": [FAMILIES[config.model_type]], "hidden_act": "silu", "torch_dtype": dtype}
    if config.model_type == "qwen2":
        raw |= {"use_sliding_window": False}
    else:
        raw |= {"attention_bias": False}
    return raw


def _required(raw: dict[str, Any], key: str):
    if raw.get(key) is None:
        raise ValueError(f"config.json has no {key!r}; nothing is assumed for it, so write it into the file.")
    return raw[key]


def _rope(raw: dict[str, Any]) -> tuple[str, float]:
    """rope_type and rope_theta from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4)."""
    scaling = (raw.get("rope_parameters") or {}) | (raw.get("rope_scaling") or {})
    kinds = {scaling[key] for key in ("rope_type", "type") if key in scaling}
    if kinds - {"default"}:
        raise ValueError(f"config.json: RoPE of type {sorted(kinds)} is not implemented; only 'default' is.")
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ValueError(f"config.json: partial_rotary_factor={partial} is not implemented.")
    thetas = {float(part["rope_theta"]) for part in (raw, scaling) if part.get("rope_theta") is not None}
    if len(thetas) != 1:
        raise ValueError(
            f"config.json: rope_theta, at top level or inside rope_parameters, must have one value; found {sorted(thetas)}."
        )
    return "default", thetas.pop()


def _refuse_unsupported(raw: dict[str, Any], model_type: str) -> None:
    refused = {
        "hidden_act": raw.get("hidden_act") not in (None, "silu"),  # "silu" is the default of all three families
        "attention_bias": bool(raw.get("attention_bias")) and model_type != "qwen2",
        "mlp_bias": bool(raw.get("mlp_bias")),
        "quantization_config": raw.get("quantization_config") is not None,
        "use_sliding_window": bool(raw.get("use_sliding_window")),
        # A window that is set while use_sliding_window is false, Qwen's habit, means full attention.
        "sliding_window": raw.get("sliding_window") is not None and model_type == "llama",
        "layer_types": any(kind != "full_attention" for kind in raw.get("layer_types") or ()),
    }
    for key, is_refused in refused.items():
        if is_refused:
            raise ValueError(f"config.json: {key}={raw[key]!r} is not implemented for {model_type}; this model cannot be loaded.")
