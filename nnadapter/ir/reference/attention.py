"""The meanings of attention, and of the layers around it or in its place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting, tensor

MEANINGS: Mapping[str, OperationDoc] = {
    "ATTENTION": OperationDoc(
        summary="Every query looks at the keys that it may see, and takes a mixture of their values.",
        formula="g = floor(h / (H / G))\n"
        "product[b, h, i, j] = scale * sum over d of query[b, h, i, d] * key[b, g, j, d]\n"
        "capped = softcap * tanh(product / softcap) if softcap > 0, else product\n"
        "masked = capped + mask, and -inf where query i may not look at key j:\n"
        "    mask is bool and false; j >= lengths[b]; is_causal and j > p; p - j > left_window >= 0;"
        " j - p > right_window >= 0\n"
        "    with p = i + lengths[b] - S if lengths are there, else i + offset\n"
        "softmax = SOFTMAX of masked along j\n"
        "output[b, h, i, e] = sum over j of softmax[b, h, i, j] * value[b, g, j, e]",
        inputs={
            "query": "[B, H, S, D]: batch, query heads, queries, depth.",
            "key": "[B, G, T, D]: G heads, a divisor of H, and T keys: those of a cache are among them.",
            "value": "[B, G, T, E]; E may differ from D.",
            "mask": "Broadcasts to [B, H, S, T]. bool: true where a query may look. Floating-point: added to the"
            " scores.",
            "lengths": "[B], 0 to T: how many keys of each item are there; the rest of T is room in a cache. The last"
            " query stands at the last of these keys.",
        },
        attributes={
            "scale": "Factor of the products; required. Mostly 1 / sqrt(D).",
            "softcap": "Limit that scores approach, by tanh; 0: none.",
            "is_causal": "True: no query looks at a key behind its own position.",
            "offset": "Position of query 0 among the keys: how many keys come from before. Without effect where"
            " `lengths` are there.",
            "left_window": "How far before its position a query looks at most; -1: no limit.",
            "right_window": "How far behind its position a query looks at most; -1: no limit.",
            "scores": "What the second output holds: `product`, `capped`, `masked` or `softmax`, as in the formula."
            " `none`: there is no second output.",
            "without_keys": "What a query that may look at no key gives: `zero` or `nan`.",
        },
        outputs={
            "output": "[B, H, S, E]. The data type of `query`.",
            "scores": "[B, H, S, T]. The data type of `query`; only there if the attribute `scores` is not `none`.",
        },
        example=Example(
            (tensor([[[[1.0], [1.0]]]]), tensor([[[[0.0], [1.0], [5.0]]]]), tensor([[[[1.0], [2.0], [100.0]]]])),
            {"scale": 1.0, "is_causal": True, "scores": "softmax"},
        ),
        traps=(
            "is_causal counts from the top left unless `offset` says otherwise: with S queries at the end of T keys,"
            " offset is T - S.",
            "Query heads share heads of keys in runs: with H = 4 and G = 2, heads 0 and 1 read head 0.",
            "An optional mask that is left out in front of `lengths` is ABSENT.",
            "Where every key is forbidden the weights are 0 by default, not NaN and not 1 / T.",
            "A mask of floats may be -inf. Its data type may differ from the query's.",
            "ONNX's past_key, past_value and packed inputs of rank 3 have become CONCAT, RESHAPE and TRANSPOSE.",
            "fuse_attention makes it of MAT_MUL, SOFTMAX, MAT_MUL, with without_keys `nan`.",
        ),
        flops="B * H * S * T * (2D + 2E + 7)",
    ),
    "ROTARY_EMBEDDING": OperationDoc(
        summary="Pairs of features turned by an angle that depends on the position.",
        formula="for pair p of P: (l, r) = (p, p + P), or (2p, 2p + 1) if interleaved\n"
        "output[b, h, s, l] = cosine[b, s, p] * input[b, h, s, l] - sine[b, s, p] * input[b, h, s, r]\n"
        "output[b, h, s, r] = sine[b, s, p] * input[b, h, s, l] + cosine[b, s, p] * input[b, h, s, r]\n"
        "features from 2P on stay as they are",
        inputs={
            "input": "[B, H, S, D].",
            "cosine": "[B, S, P], or 1 in the place of B or S; P at most D / 2. Looked up for each position already.",
            "sine": "Dimensions of `cosine`.",
        },
        attributes={
            "interleaved": "True: neighbors are a pair. False: the first half of the features with the second half."
        },
        outputs={"output": "Data type and dimensions of `input`."},
        example=Example(
            (counting(1, 1, 1, 5), tensor([[[0.0, 1.0]]]), tensor([[[1.0, 0.0]]])),
        ),
        traps=(
            "Halves are those of the 2P features that turn, not of D.",
            "There is no position input: the converter gathers rows of the caches.",
        ),
    ),
    "LINEAR_ATTENTION": OperationDoc(
        summary="Attention with a state in the place of a cache: every step updates it, and reads it.",
        formula="per step t and head g of keys, with state M [D, E], k = key[b, t, g], v = value[b, t, g]:\n"
        "M = exp(decay[b, t, g])[:, None] * M        gated, gated_delta; else M stays\n"
        "M = M + rate[b, t, g] * outer(k, v - M^T k)  delta, gated_delta\n"
        "M = M + outer(k, v)                          linear, gated\n"
        "output[b, t, h] = scale * query[b, t, h] @ M    for the query heads h of g: floor(h / (heads / groups)) = g",
        inputs={
            "query": "[B, T, query_heads * D]: the heads lie behind each other.",
            "key": "[B, T, key_value_heads * D].",
            "value": "[B, T, key_value_heads * E].",
            "past_state": "[B, key_value_heads, D, E]: the state before the first step; none: zeros.",
            "decay": "[B, T, key_value_heads], or [B, T, key_value_heads * D] for one per row of the state."
            " Logarithms: mostly negative. There for `gated` and `gated_delta` alone.",
            "rate": "[B, T, key_value_heads], or [B, T, 1] for all. There for `delta` and `gated_delta` alone.",
        },
        attributes={
            "query_heads": "Into how many heads query and output are cut.",
            "key_value_heads": "Into how many key and value are cut; a divisor of query_heads.",
            "scale": "Factor of the output; required.",
            "update_rule": "How a step changes the state; see the formula.",
        },
        outputs={
            "output": "[B, T, query_heads * E]. The data type of `query`.",
            "present_state": "[B, key_value_heads, D, E]: the state behind the last step. The data type of"
            " `past_state`, or else of `query`.",
        },
        example=Example(
            (
                tensor([[[1.0], [1.0]]]),
                tensor([[[1.0], [1.0]]]),
                tensor([[[2.0], [4.0]]]),
                None,
                None,
                tensor([[[0.5], [0.5]]]),
            ),
            {"query_heads": 1, "key_value_heads": 1, "scale": 1.0, "update_rule": "delta"},
        ),
        traps=(
            "decay is a logarithm: exp is taken here.",
            "A step decays first, corrects by the decayed state, and reads the new one.",
            "decay and rate must be there exactly if the rule reads them.",
        ),
        flops="B * T * D * E * (5 * key_value_heads + 2 * query_heads)",
    ),
    "CAUSAL_CONV": OperationDoc(
        summary="A depthwise convolution along the steps that sees no step to come.",
        formula="padded = past_state, then input\n"
        "sum[b, c, t] = bias[c] + sum over k of weight[c, 0, k] * padded[b, c, t + k]\n"
        "output = sum, or sum / (1 + exp(-sum)) with activation swish\n"
        "present_state = the last taps - 1 steps of padded",
        inputs={
            "input": "[B, C, T].",
            "weight": "[C, 1, taps]; the last tap sees the step itself.",
            "bias": "[C]; none: zeros.",
            "past_state": "[B, C, taps - 1]: the steps before; none: zeros.",
        },
        attributes={"activation": "`none`, or `swish`: the sum times its sigmoid."},
        outputs={
            "output": "Data type and dimensions of `input`.",
            "present_state": "[B, C, taps - 1]: past_state for the next call.",
        },
        example=Example((counting(1, 1, 3), tensor([[[10.0, 1.0]]]), None, np.full((1, 1, 1), 100.0, np.float32))),
        traps=(
            "present_state holds inputs, without bias and activation.",
            "With fewer steps than taps - 1, the rest of it is from past_state.",
        ),
        flops="(2 * taps + 1) for each element of the output, 4 more with swish",
    ),
}
"""By operation."""
