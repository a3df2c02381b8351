# SPDX-License-Identifier: MIT
"""Docstrings: each public callable describes exactly the parameters that it has, and each parameter has a type."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
import unittest
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import loci

MODULES = (
    "layers",
    "rope",
    "plot",
    "seg",
    "lab",
    "nn",
    "gpu",
    "distributed",
    "flash_attn",
    "flash_attn.bert_padding",
    "flash_attn.layers.rotary",
    "hf",
)  # the last ones need torch, or transformers

# Not for callers: loci.attention() and loci.attention_backward() call them.
INTERNAL = {
    "loci.distributed.attention",
    "loci.distributed.attention_backward",
    "loci.distributed.own_rank",
    "loci.distributed.number_of_ranks",
    "loci.hf.sight",
}


def modules() -> Iterator[ModuleType]:
    yield loci
    for name in MODULES:
        try:
            yield importlib.import_module(f"loci.{name}")
        except ImportError:
            continue  # without torch or transformers there is no such module


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Names and objects of a module: those of __all__, or what it defines."""
    listed = getattr(module, "__all__", None)
    for name in vars(module) if listed is None else listed:
        x = getattr(module, name)
        here = listed is not None or getattr(x, "__module__", None) == module.__name__
        if callable(x) and not name.startswith("_") and here and f"{module.__name__}.{name}" not in INTERNAL:
            yield f"{module.__name__}.{name}", x


def members(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that loci's own classes define."""
    for base in cls.__mro__:
        if base.__module__.startswith("loci"):
            for own, x in vars(base).items():
                if not own.startswith("_") and (inspect.isfunction(x) or isinstance(x, property)):
                    yield f"{name}.{own}", x


def documented() -> Iterator[tuple[str, Any]]:
    for module in modules():
        for name, x in public(module):
            yield name, x
            if inspect.isclass(x):
                yield from members(name, x)


def parameters(x: Any) -> list[inspect.Parameter]:
    if isinstance(x, property):
        return []
    if inspect.isclass(x):
        if dataclasses.is_dataclass(x) or "__init__" not in vars(x):
            return []  # fields are attributes: see fields()
        x = x.__init__
    return [p for p in inspect.signature(x).parameters.values() if p.name not in ("self", "cls")]


def fields(x: Any) -> list[str]:
    if dataclasses.is_dataclass(x):
        return [field.name for field in dataclasses.fields(x)]
    return list(getattr(x, "_fields", ()))


def section(doc: str, title: str) -> dict[str, str]:
    """Entries of a section of numpydoc, with what is said of each."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n---|\Z)", inspect.cleandoc(doc), re.S | re.M)
    entries: dict[str, str] = {}
    for line in found[1].splitlines() if found else ():
        if line and not line.startswith(" "):
            entries[name := line.split(" : ")[0]] = ""
        elif line:
            entries[name] += line.strip()
    return entries


def written(p: inspect.Parameter) -> str:
    return {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name


class Docstrings(unittest.TestCase):
    def test_every_parameter_is_described(self) -> None:
        for name, x in documented():
            with self.subTest(name):
                doc = vars(x).get("__doc__") if inspect.isclass(x) else x.__doc__
                self.assertTrue(doc, "there is no docstring")
                described = section(doc, "Parameters")
                self.assertEqual(list(described), [written(p) for p in parameters(x)])
                attributes = section(doc, "Attributes") if inspect.isclass(x) else {}
                self.assertEqual(list(attributes), fields(x) if inspect.isclass(x) else [])
                for entry, text in {**described, **attributes}.items():
                    self.assertTrue(text, f"nothing is said of {entry}")

    def test_every_parameter_has_a_type(self) -> None:
        for name, x in documented():
            for p in parameters(x):
                if p.kind is p.VAR_KEYWORD:
                    continue  # options of another function, which has their types
                with self.subTest(f"{name}: {p.name}"):
                    said = str(p.annotation)
                    self.assertIsNot(p.annotation, p.empty)
                    self.assertIsNone(re.search(r"\bAny\b", said), said)

    def test_enough_is_looked_at(self) -> None:
        self.assertGreater(len(list(documented())), 60)

    def test_examples(self) -> None:
        for x in (loci.attention, loci.rotate, loci.Plan, loci.Cache):
            with self.subTest(x.__name__):
                tests = doctest.DocTestFinder(recurse=False).find(x, x.__name__)
                self.assertTrue(tests[0].examples)
                for test in tests:
                    self.assertEqual(doctest.DocTestRunner().run(test).failed, 0)


if __name__ == "__main__":
    unittest.main()
