"""The decoder in slow numpy: one token, one head, one sum at a time, in float64. What the tests compare with."""

import numpy as np


def normed(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x) + epsilon) * weight


def rotated(x, position, theta):
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        phase = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * np.cos(phase) - x[i + half] * np.sin(phase)
        out[i + half] = x[i + half] * np.cos(phase) + x[i] * np.sin(phase)
    return out


def hidden(params, config, tokens):
    """Final-norm states [L, d] of one row of ids, at positions 0 .. L-1."""
    params = {name: np.asarray(value, np.float64) for name, value in params.items() if name != "layers"} | {
        "layers": {name: np.asarray(value, np.float64) for name, value in params["layers"].items()}
    }
    heads, width = config.num_attention_heads, config.head_dim
    per_kv = heads // config.num_key_value_heads
    x = [params["embed_tokens"][token] for token in tokens]
    for layer in range(config.num_hidden_layers):
        w = {name: value[layer] for name, value in params["layers"].items()}

        def head(name, state, index, position, w=w):
            out = state @ w[f"{name}_proj"][:, index * width : (index + 1) * width]
            if f"{name}_bias" in w:
                out = out + w[f"{name}_bias"][index * width : (index + 1) * width]
            if f"{name}_norm" in w:
                out = normed(out, w[f"{name}_norm"], config.rms_norm_eps)
            return out if name == "v" else rotated(out, position, config.rope_theta)

        states = [normed(state, w["input_layernorm"], config.rms_norm_eps) for state in x]
        mixed = np.zeros((len(x), heads * width))
        for h in range(heads):
            queries = np.stack([head("q", state, h, p) for p, state in enumerate(states)])
            keys = np.stack([head("k", state, h // per_kv, p) for p, state in enumerate(states)])
            values = np.stack([head("v", state, h // per_kv, p) for p, state in enumerate(states)])
            for p in range(len(x)):
                scores = keys[: p + 1] @ queries[p] / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                mixed[p, h * width : (h + 1) * width] = weights / weights.sum() @ values[: p + 1]
        for p in range(len(x)):
            after = x[p] + mixed[p] @ w["o_proj"]
            state = normed(after, w["post_attention_layernorm"], config.rms_norm_eps)
            gate = state @ w["gate_proj"]
            x[p] = after + (gate / (1 + np.exp(-gate)) * (state @ w["up_proj"])) @ w["down_proj"]
    return np.stack([normed(state, params["norm"], config.rms_norm_eps) for state in x])
