"""Batches by tokens of a loader: their rule, the lengths they come from, and their fields."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from forebay import _native
from forebay._filters import Filtered, Part
from forebay._layout import PACKED, Layout
from forebay._values import flag
from forebay.errors import Invalid
from forebay.fields import Field, Npy, Rows, Text
from forebay.tokens import Tokens

# Bytes before the elements of a one-dimensional file, as NumPy writes it since 1.14.
_NPY_HEADER = 128

_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True)
class Binned:
    """Batches by tokens of a job."""

    cut: _native.Cut
    layout: Layout
    # The rule, for the state.
    rule: dict[str, Any]
    length: str | None

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The rule, and a hash of the lengths."""
        return self.rule | {"lengths": self.cut.hash()}


def refused(batch_by: Any, pack: Any, given: Mapping[str, Any]) -> Tokens | None:
    """Return the rule of batches by tokens, None for batches of samples.

    Raises
    ------
    Invalid
        For a rule that is none, and for options that make no sense with it.
    """
    is_packed = flag("pack", pack)
    if batch_by is None:
        if is_packed:
            raise Invalid(
                "pack=True packs batches by tokens; give batch_by=forebay.Tokens(...)",
                {"option": "pack"},
            )
        return None
    if not isinstance(batch_by, Tokens):
        raise Invalid(
            f"batch_by={batch_by!r}; give forebay.Tokens('tokens', budget=65536)",
            {"option": "batch_by"},
        )
    if is_packed and batch_by.buckets is not None:
        raise Invalid(
            "buckets= are widths of padded rows, and pack=True pads none; drop one of them",
            {"option": "buckets"},
        )
    if given["batch_size"] != 256:
        raise Invalid(
            "batch_by= decides the samples of a batch; leave batch_size= unset",
            {"option": "batch_size"},
        )
    if given["split"] == "dynamic":
        raise Invalid(
            "split='dynamic' gives ranks whole shards at their own pace, so that no batches can "
            "be matched among them; leave split unset",
            {"option": "split"},
        )
    return batch_by


def laid_out(
    tokens: Tokens, is_packed: bool, fields: Mapping[str, Field] | None
) -> tuple[dict[str, Field], Layout]:
    """Return the fields in the form that batches by tokens need, and the layout.

    Raises
    ------
    Invalid
        For a name that is no field, with the nearest, or no field of rows.
    """
    made = dict(fields or {})
    caps, values = [], []
    for name in tokens.names():
        field = _field(name, made)
        caps.append(field.max_len)
        values.append(field.pad_value)
        wrong = "nested" if not is_packed else "pad"
        if field.ragged == wrong:
            raise Invalid(
                f"field {name!r} has ragged={wrong!r}, and batches are "
                f"{'packed' if is_packed else 'padded'}; leave ragged unset, or "
                f"{'drop pack=True' if is_packed else 'give pack=True'}",
                {"field": name},
            )
    given = [cap for cap in caps if cap is not None]
    if tokens.too_long == "truncate":
        given.append(tokens.budget)
    cap = min(given, default=None)
    for name in tokens.names():
        changes = {"ragged": "nested", "max_len": cap} if is_packed else {"ragged": "pad"}
        made[name] = dataclasses.replace(made[name], **({"max_len": None} | changes))
    taken = [name for name in PACKED if is_packed and name in made]
    if taken:
        raise Invalid(
            f"the name {taken[0]!r} is taken for packed batches; choose another",
            {"field": taken[0]},
        )
    layout = Layout(tokens.names(), is_packed, tokens.budget, tokens.widths(), cap, tuple(values))
    return made, layout


def _field(name: str, fields: Mapping[str, Field]) -> Rows:
    field = fields.get(name)
    if isinstance(field, Rows):
        return field
    if field is not None:
        raise Invalid(
            f"field {name!r} is {field!r}, which has no rows of tokens; name an Npy or a Text",
            {"field": name},
        )
    near = difflib.get_close_matches(name, fields, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    known = f"the fields are {', '.join(fields)}" if fields else "fields= is unset"
    raise Invalid(
        f"batch_by= names {name!r}, which is no field; {meant}{known}",
        {"field": name} | ({"meant": near[0]} if near else {}),
    )


def binned(
    tokens: Tokens,
    layout: Layout,
    fields: Mapping[str, Field],
    parts: Sequence[Part],
    filtered: Filtered | None,
    way: _native.Way,
) -> Binned:
    """Return the batches by tokens of a job, with the lengths of its samples.

    Raises
    ------
    Invalid
        For lengths that are not to be had, naming what is missing.
    """
    listed = []
    for part in parts:
        if part.manifest is None:
            raise Invalid(
                "batch_by= needs a member index: give each data set a manifest= made by "
                "`forebay index URLS -o MANIFEST --members`",
                {"option": "batch_by"},
            )
        listed.append((part.manifest, part.urls))
    name = layout.names[0]
    field = fields[name]
    assert isinstance(field, Rows), "checked with the layout"
    rule = {
        "budget": tokens.budget,
        "lookahead": tokens.lookahead,
        "is_packed": layout.is_packed,
        "buckets": list(layout.widths),
    }
    wanted = {
        "field": name,
        "source": _source(tokens, name, field),
        "is_optional": field.optional,
        "budget": tokens.budget,
        "max_len": layout.max_len,
        "is_alone": tokens.too_long == "alone",
    }
    selection = None if filtered is None else filtered.selection
    cut = _native.Cut(json.dumps(rule), json.dumps(wanted), listed, way, selection)
    return Binned(cut, layout, rule, tokens.length)


def _source(tokens: Tokens, name: str, field: Rows) -> dict[str, Any]:
    """Return the place of the lengths, for the native side."""
    if tokens.length is not None:
        return {"column": tokens.length}
    column = (
        "give length= with a column of the member index, made by `forebay index --columns "
        "json:NAME`, where the samples' JSON has the number of tokens"
    )
    if field.map is not None:
        raise Invalid(
            f"field {name!r} has map=, whose results are as long as only they know; {column}",
            {"field": name},
        )
    header, item = 0, 1
    if isinstance(field, Npy):
        header, item = _npy(tokens, name, field, column)
    else:
        assert isinstance(field, Text), "rows are arrays or text"
    sources = [one.strip().lstrip(".").lower() for one in field.source.split(";")]
    return {"member": {"fields": sources, "header": header, "item": item}}


def _npy(tokens: Tokens, name: str, field: Npy, column: str) -> tuple[int, int]:
    if field.dtype is None or field.shape is None:
        if tokens.dtype is None:
            raise Invalid(
                f"the length of an .npy file follows from its size and the type of its elements: "
                f"give dtype= to Tokens for {name!r}, such as dtype='int32', or {column}",
                {"field": name},
            )
        return _NPY_HEADER, _ITEM_BYTES[tokens.dtype]
    shape = tuple(field.shape) if isinstance(field.shape, Sequence) else (field.shape,)
    if not shape or -1 in shape[1:]:
        raise Invalid(
            f"field {name!r} has shape={field.shape!r}, whose first dimension is not that of "
            f"tokens; write it as (-1, ...), or {column}",
            {"field": name},
        )
    return 0, _ITEM_BYTES[field.dtype] * math.prod(shape[1:])
