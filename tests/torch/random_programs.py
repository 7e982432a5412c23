"""Random functions as source code: views, changes in place, reductions, indexing, casts; several inputs.

A line is drawn from the tables below, run by PyTorch on the existing values, and kept if that works and its numbers
have
a reasonable size. Rounded values (`exp`, a mean) are not compared, truncated or sorted later: two correct results may
differ in the last digit, which such lines would magnify. If the largest value occurs twice, `topk` may pass its
gradient to either.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = (torch.float16, torch.bfloat16)
KINDS = (*("float32",) * 5, *FLOATS, "int64", "int32", "uint8", "bool")
PLACES = ("torch.tensor([1, 0])", "torch.tensor([-1, 0, 0])")
ROUNDED = (
    "{x}.sin()", "torch.exp(-{x}.abs())", "{x}.sigmoid()", "{x}.tanh()", "({x}.abs() + 1).sqrt()", "F.gelu({x})",
    "F.silu({x})", "F.softplus({x})", "{x}.softmax({d})", "{x}.log_softmax({d})", "({x}.abs() + 1).log()", "{x} / 3",
    "{x} / ({y}.abs() + 1)", "({x}.abs() + 1).reciprocal()", "{x}.mean({d})", "{x}.mean()",
    "{x}.var({d}, correction=0)", "{x}.logsumexp({d})", "{x}.norm()", "F.layer_norm({x}, {x}.shape[-1:])",
    "torch.lerp({x}, {y}, 0.3)", "{x}.cumprod({d})", "F.elu({x})", "{x}.erf()",
    "torch.addcdiv({x}, {x}, {y}.abs() + 2)", "F.normalize({x}, dim={d})", "{x}.std({d})",
    "F.cosine_similarity({x}, {y}, dim={d})", "F.cross_entropy({m}, {m}.argmax(-1))", "F.mse_loss({x}, {y})",
    "F.scaled_dot_product_attention({m}, {m}, {m})", "F.group_norm({m}[None], 1)",
)  # fmt: skip
SMOOTH = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} * 2", "{x} + 0.5", "1 - {x}", "-{x}", "{x} ** 2", "{x}.square()",
    "{x}.sum({d})", "{x}.sum()", "{x}.sum({d}, keepdim=True)", "{x}.cumsum({d})", "{x} @ {x}.mT", "{m} @ {n}.t()",
    "F.linear({m}, {n})", "torch.cat([{x}, {x}], {d})", "torch.stack([{x}, {x}])", "torch.cat([{x}, {y}], {d})",
    "F.pad({x}, (1, 2))", "F.pad({x}, (1, 1), value=3.0)", "{x}.tril()", "{x}.triu(1)", "torch.addmm({m}, {m}, {q})",
    "torch.where({x} > 0, {x}, {y}) * 1", "torch.outer({v}, {v})", "{x}.diff(dim={d})",
    "torch.einsum('ij,kj->ik', {m}, {n})", "{x}.repeat(2, *[1] * ({x}.dim() - 1))", "{x}.repeat_interleave(2, {d})",
    "{x}.roll(1, {d})", "{x}.flip({d})", "{x}.clone()", "torch.zeros_like({x})", "torch.ones_like({x})",
    "torch.full_like({x}, 2)", "{x} + {x}.shape[0]",
)  # fmt: skip
"""Exact on small numbers, and differentiable."""
VIEWS = (
    "{x}.t()", "{x}.transpose(0, -1)", "{x}.permute(*reversed(range({x}.dim())))", "{x}.reshape(-1)", "{x}.flatten()",
    "{x}.unsqueeze({d})", "{x}[None]", "{x}.squeeze()", "{x}[1:]", "{x}[:, ::2]", "{x}[..., 0]", "{x}[0]",
    "{x}[..., -2:]", "{x}.expand(2, *{x}.shape)", "{x}.unbind({d})[0]", "{x}.chunk(2, {d})[-1]",
    "{x}.split(1, {d})[0]", "{x}.mT", "{x}.view(-1, {x}.shape[-1])", "{x}.diagonal()", "{x}.unfold({d}, 2, 1)",
    "{x}.narrow({d}, 0, 1)", "{x}.contiguous()", "{x}.view_as({x})", "{x}.detach()", "{x}.select({d}, 0)",
    "{x}.movedim(0, -1)",
)  # fmt: skip
JUMPS = (
    "{x}.floor()", "{x}.round()", "{x}.trunc()", "{x}.sign()", "{x} // 2", "{x} % 3", "{x} // ({y}.abs() + 1)",
    "{x}.relu()", "torch.remainder({x}, -2)", "torch.fmod({x}, 2)", "{x}.abs()", "{x}.clamp(-1, 2)",
    "torch.maximum({x}, {y})", "torch.minimum({x}, {y} * 2)", "{x} > {y}", "{x} <= 1", "{x} == {y}", "{x}.eq(0)",
    "{x}.ne({y})", "{x}.amax({d})", "{x}.amin()", "{x}.max({d})[0]", "{x}.argmax({d})", "{x}.argmin()",
    "{x}.any({d})", "{x}.all()", "{x}.sort({d})[0]", "{x}.detach().topk(1, {d})[0]", "{x}.argsort({d}, stable=True)",
    "{x}.bool()", "{x}.to(torch.int64)", "{x}.int()", "~{x}.bool()", "{x}.logical_not()",
    "torch.where({x} > {y}, {x}, {y})", "{x}.masked_fill({x} > 1, -3)", "{x}.prod({d})", "{x}.nonzero()",
    "{x}[{x} > 0]", "torch.bincount({i}.flatten().abs())", "{x}.isnan()", "{x}.logical_and({y})",
    "{x}.count_nonzero()", "{x}.cummax({d})[0]", "{x}.heaviside({y})", "F.relu6({x})", "F.hardtanh({x})",
    "F.leaky_relu({x}, 0.5)", "{x}.to(torch.uint8)", "F.max_pool1d({m}[None], 2)", "F.one_hot({i}.abs() % 4, 4)",
    "{x}.median()", "torch.bucketize({x}, torch.tensor([0.0, 1.0]))",
)  # fmt: skip
INDEXING = (
    "{x}[{j}]", "{x}[{j}, 0]", "{x}[:, {j}]", "{x}.index_select({d}, {j})", "{x}.gather(0, {x}.long().abs() % 2)",
    "{x}.scatter(0, {x}.long() * 0, 1)", "{x}.index_add(0, {j}, {x}[{j}])", "{x}.index_fill({d}, {j}, 2)",
    "{x}.take({j})", "{x}.index_put(({j},), {x}[0])", "F.embedding({j}, {m})",
    "torch.take_along_dim({x}, {x}.long() * 0, 0)", "{x}.scatter_add(0, {x}.long() * 0, {x})",
    "{x}.index_copy(0, {j}[:1], {x}[:1])", "{x}.scatter_reduce(0, {x}.long() * 0, {x}, 'amax')",
)  # fmt: skip
IN_PLACE = (
    "{x}.add_(1)", "{x}.mul_(2)", "{x}.sub_({y})", "{x}[0] = 2", "{x}[..., 0] += 1", "{x}.zero_()", "{x}.copy_({y})",
    "{x}.neg_()", "{x}[1:] = {x}[:-1].clone()", "{x}.fill_(1)", "{x}[{j}] = 3", "{x}.t_()", "{x}.clamp_(min=0)",
    "{x}.t().add_(1)", "{x}.relu_()", "{x}[:, 0].mul_(2)", "{x}.view(-1)[0] = 4", "{x}.index_add_(0, {j}, {x}[{j}])",
    "{x}.masked_fill_({x} > 1, 0)", "{x} += {y}", "{x}.unsqueeze_(0)", "{x}.transpose_(0, -1)",
    "{x}.index_fill_(0, {j}, 1)", "{x}.scatter_(0, {x}.long() * 0, 1)",
)  # fmt: skip
TABLES = ((SMOOTH, 6), (VIEWS, 5), (ROUNDED, 3), (JUMPS, 3), (INDEXING, 2), (IN_PLACE, 3))


@dataclass(frozen=True)
class Made:
    """Function, and its seeded inputs."""

    source: str
    seed: int
    kinds: tuple[str, ...]
    aliases: str
    trains: bool

    def function(self):
        """Compile the function again, so that nothing about it is cached."""
        names = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), names)
        return names["program"]

    def inputs(self, rows: int, call: int) -> list[torch.Tensor]:
        """Return inputs with this many rows; in training, floating-point inputs require gradients."""
        return _inputs(self.seed, self.kinds, self.aliases, self.trains, rows, call)


def make(seed: int, length: int = 9) -> Made:
    """Return a function of up to `length` lines."""
    chance = random.Random(seed)
    kinds = tuple(chance.choice(KINDS) for _ in range(chance.choice((2, 2, 3))))
    aliases, trains = chance.choice(("apart", "apart", "same", "view")), chance.random() < 0.5
    names, lines, rounded = "abc"[: len(kinds)], [], set()
    for _ in range(length * 3):
        values = _run(lines, dict(zip(names, _inputs(seed, kinds, aliases, trains, 4, 0), strict=True)))
        line, reads, table = _drawn(chance, values, rounded, f"t{len(lines)}")
        result = _run([*lines, line], dict(zip(names, _inputs(seed, kinds, aliases, trains, 4, 0), strict=True)))
        if not all(map(_is_reasonable, result.values())) or len(lines) == length or len(result) < len(values):
            continue
        lines.append(line)
        new = result.keys() - values.keys()
        if table is ROUNDED or reads & rounded or any(result[name].dtype in HALVES for name in new):
            rounded.update(new or result)
    results = [f"t{place}" for place, line in enumerate(lines) if line.startswith(f"t{place} = ")][-3:] or [names[0]]
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def program({', '.join(names)}):\n{body}    return {', '.join(results)},\n"
    return Made(source, seed, kinds, aliases, trains)


def _inputs(seed, kinds, aliases, trains, rows, call):
    result = torch.Generator().manual_seed(seed * 10 + call)
    values = [torch.randint(-6, 7, (rows, 4), generator=result) for _ in kinds]
    typed = [
        _typed(value, kind).requires_grad_(trains and kind in FLOATS) for value, kind in zip(values, kinds, strict=True)
    ]
    if aliases == "same":
        typed[1] = typed[0]
    if aliases == "view":
        typed[1] = typed[0].t() if rows == 4 else typed[0][:]
    return typed


def _typed(value, kind):
    dtype = getattr(torch, kind)
    if dtype.is_floating_point:
        return (value / 4).to(dtype)
    return (value > 0) if dtype is torch.bool else value.abs().to(dtype)


def _run(lines, values):
    """Run the lines and return the values by name; none if PyTorch raises."""
    scope = {"torch": torch, "F": torch.nn.functional, **values}
    try:
        exec("\n".join(lines), scope)
    except Exception:  # noqa: BLE001  a random line may raise anything
        return {}
    return {name: value for name, value in scope.items() if name not in ("torch", "F", "__builtins__")}


def _drawn(chance, values, rounded, name):
    """Draw a line; return it with the names that it reads and its table."""
    (table,) = chance.choices([table for table, _ in TABLES], [weight for _, weight in TABLES])
    names = [value for value in values if table is not JUMPS or value not in rounded] or list(values)
    matrices = [name for name in names if values[name].dim() == 2 and values[name].is_floating_point()] or names
    vectors = [name for name in names if values[name].dim() == 1] or names
    integers = [name for name in names if values[name].dtype in (torch.int64, torch.int32)] or names
    among = {"x": names, "y": names, "m": matrices, "n": matrices, "q": matrices, "v": vectors, "i": integers}
    chosen = {key: chance.choice(some) for key, some in among.items()}
    template = chance.choice(table)
    text = template.format(**chosen, d=chance.choice((0, -1)), j=chance.choice(PLACES))
    reads = {value for key, value in chosen.items() if "{" + key + "}" in template}
    if table is JUMPS and reads & rounded:
        return "raise", reads, table
    return text if table is IN_PLACE else f"{name} = {text}", reads, table


def _is_reasonable(value):
    if not isinstance(value, torch.Tensor) or value.is_complex() or not 0 < value.numel() <= 600 or value.dim() > 5:
        return False
    wide = value.detach().to(torch.float64)
    return bool(wide.isfinite().all()) and float(wide.abs().max()) <= 200
