# SPDX-License-Identifier: MIT
"""What a notebook shows of encodings, options and plans: small tables of HTML, in which all text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._plan import Encoding, Option, Plan, Tensor

_CELL = "text-align:left;vertical-align:top"


def code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already, heads are text."""
    top = "".join(f'<th style="{_CELL}">{escape(head)}</th>' for head in heads)
    lines = ("".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _number(x: float) -> str:
    return f"{x:.9g}" if math.isfinite(x) else ("" if math.isnan(x) else "-∞" if x < 0 else "∞")


def _default(o: Option) -> str:
    if o.required:
        return "required"
    if o.default is None:
        return "depends on other options"
    return code(o.default if isinstance(o.default, str) else _number(o.default))


def _values(o: Option) -> str:
    if o.words:
        return ", ".join(map(code, o.words))
    if math.isinf(o.min) and math.isinf(o.max):
        return escape(o.kind)
    return f"{escape(o.kind)}, {_number(o.min)} to {_number(o.max)}"


def options(listed: Sequence[Option]) -> str:
    rows = ([code(o.name), _values(o), _default(o), escape(o.help)] for o in listed)
    return table(("option", "values", "default", ""), rows)


def encodings(listed: Sequence[Encoding]) -> str:
    rows = (
        [code(e.name), escape(e.brief), ", ".join(map(escape, e.places)), ", ".join(code(o.name) for o in e.options)]
        for e in listed
    )
    return table(("encoding", "", "acts on", "options"), rows)


def encoding(e: Encoding) -> str:
    said = [f"<b>{code(e.name)}</b>: {escape(e.brief)}"]
    if e.cite:
        said.append(escape(e.cite))
    said.append(f"acts on {', '.join(map(escape, e.places))}{'; causal only' if e.causal_only else ''}")
    if e.example:
        said.append(f"example: {code(e.example)}")
    return f"<div>{'<br>'.join(said)}{options(e.options) if e.options else ''}</div>"


def _shape(t: Tensor, sizes: Iterable[str | int]) -> str:
    return escape(f"[{', '.join(map(str, sizes))}]")


def plan(p: Plan) -> str:
    sizes: dict[str, Any] = {"stage": p.stage, "dtype": p.dtype, "heads": p.heads, "kv_heads": p.kv_heads}
    sizes |= {"dim": p.dim, "value_dim": p.value_dim, "model_dim": p.model_dim or None}
    if p.stage in ("attention", "linear_attention"):
        sizes |= p.options()
    else:
        sizes["max_len"] = p.options()["max_len"]
    rows = [[escape(name), code(value)] for name, value in sizes.items() if value is not None and value is not False]
    made = f"<div><b>{code(p.text)}</b>{table(('', ''), rows)}"
    if p.tensors:
        named = zip(p.tensors, p.sizes, strict=True)
        made += table(
            ("tensor", "role", "shape"), ([code(t.name), escape(t.role), _shape(t, shape)] for t, shape in named)
        )
    return made + "</div>"


def module(m: Any, p: Plan) -> str:
    """A module of torch: its parameters by name, and the plan of its encoding."""
    named = list(m.named_parameters())
    rows = ([code(name), escape(str(list(x.shape))), escape(str(x.dtype).removeprefix("torch."))] for name, x in named)
    count = sum(x.numel() for _, x in named)
    made = f"<div><b>{code(type(m).__name__)}</b>, {count} parameters"
    return f"{made}{table(('parameter', 'shape', 'dtype'), rows) if named else ''}{plan(p)}</div>"
