# SPDX-License-Identifier: MIT
"""What a notebook shows, and progress."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import pickle
import sys
import tempfile
import types
import unittest
from html.parser import HTMLParser
from typing import Any
from unittest import mock

import numpy as np

import loci
from loci import _html, _notebook, plot

try:
    import torch

    import loci.nn
    from loci import _lab_train as lab_train
except ImportError:
    torch = None  # type: ignore[assignment]
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    matplotlib = None  # type: ignore[assignment]

PROGRAM = os.environ.get("LOCI")
if PROGRAM:
    PROGRAM = os.path.abspath(PROGRAM)
HOSTILE = "<script>alert('&\"')</script>"


class Page(HTMLParser):
    """Tags, those that are open at the end, and texts as a reader sees them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class Tables(unittest.TestCase):
    def page(self, x: Any) -> Page:
        page = Page(x._repr_html_())
        self.assertEqual(page.open, [])
        self.assertLessEqual(
            set(page.seen), {"div", "b", "br", "code", "table", "thead", "tbody", "tr", "th", "td"}, "other tags"
        )
        return page

    def test_list(self) -> None:
        listed = loci.list()
        page = self.page(listed)
        self.assertEqual(page.seen.count("tr"), 1 + len(listed))
        for e in listed:
            self.assertIn(e.name, page.texts)
            self.assertIn(e.brief, page.texts)

    def test_list_is_a_list(self) -> None:
        listed = loci.list()
        self.assertIsInstance(listed, list)
        self.assertEqual(listed, list(listed))
        self.assertEqual(type(listed[:2]), list)
        self.assertEqual(listed + [], list(listed))  # noqa: RUF005
        self.assertEqual(repr(listed), repr(list(listed)))
        listed.append(listed[0])  # of the caller alone
        self.assertEqual(len(loci.list()), len(listed) - 1)
        self.assertEqual(len(json.dumps([e.name for e in listed]).split(",")), len(listed))
        self.assertEqual(pickle.loads(pickle.dumps(listed)), listed)

    def test_every_description(self) -> None:
        for e in loci.list():
            with self.subTest(e.name):
                texts = self.page(loci.describe(e.name)).texts
                for o in e.options:
                    self.assertIn(o.name, texts)
                    self.assertIn(o.help, texts)
                    self.assertEqual("required" in texts, any(o.required for o in e.options))

    def test_values(self) -> None:
        o = loci.Option("n", "number", False, 0.25, 0.0, np.inf, (), "")
        self.assertIn('<td style="text-align:left;vertical-align:top">number, 0 to ∞</td>', _html.options([o]))
        self.assertIn("<code>0.25</code>", _html.options([o]))
        free = dataclasses.replace(o, min=-np.inf, default=None)
        self.assertIn(">number<", _html.options([free]))
        self.assertIn("depends on other options", _html.options([free]))
        words = dataclasses.replace(o, words=("a", "b"), default="b")
        self.assertIn("<code>a</code>, <code>b</code></td>", _html.options([words]))

    def test_plans(self) -> None:
        plan = loci.Plan("rope:pairing=half+t5:bidirectional=0", 8, 64, kv_heads=2, window_size=(7, 0))
        texts = self.page(plan).texts
        for text in (plan.text, "t5.table", "learned", "[32, 8]", "kv_heads", "2", "(7, 0)"):
            self.assertIn(text, texts)
        self.assertIn("[batch, 8, keys]", self.page(loci.Plan("fox", 8, 64)).texts)
        self.page(loci.Plan("sinusoidal", stage="embed", model_dim=16))
        self.page(loci.Plan("rope:pairing=half", 2, 8, stage="rotate"))

    @unittest.skipUnless(torch, "there is no PyTorch")
    def test_modules(self) -> None:
        layer = loci.nn.Attention(32, 4, "t5:bidirectional=0")
        texts = self.page(layer).texts
        for text in ("Attention", "q_proj.weight", "[32, 32]", "encoding.t5.table", "t5.table"):
            self.assertIn(text, texts)
        self.assertIn(f", {sum(p.numel() for p in layer.parameters())} parameters", texts)
        self.assertIn("Encoding", self.page(layer.encoding).texts)
        self.page(loci.nn.Encoding("nope", 2, 8))

    def test_text_is_escaped(self) -> None:
        o = loci.Option(HOSTILE, HOSTILE, False, HOSTILE, 0.0, 1.0, (), HOSTILE)
        worded = dataclasses.replace(o, words=(HOSTILE, "a"))
        e = loci.Encoding(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), True, (o, worded), 1.0, HOSTILE)
        listed = type(loci.list())([e])
        plan = loci.Plan("t5:bidirectional=0", 2, 8)
        plan.text = plan.stage = plan.dtype = HOSTILE
        plan.tensors = (loci.Tensor(HOSTILE, HOSTILE, (None, 2)),)
        plan.sizes = ((HOSTILE, 2),)
        for x in (e, listed, plan):
            with self.subTest(type(x).__name__):
                self.assertIn(HOSTILE, self.page(x).texts)
                self.assertNotIn("<script", x._repr_html_())
                self.assertNotIn("'", x._repr_html_())
        if torch:
            module = torch.nn.Module()
            module.register_parameter(HOSTILE.replace(".", ""), torch.nn.Parameter(torch.zeros(1)))
            self.assertNotIn("<script", _html.module(module, plan))


class Kernel:
    """What sys.modules has for IPython in a notebook."""

    def __init__(self, kernel: object = True) -> None:
        self.shown: list[Any] = []
        self.module = types.ModuleType("IPython")
        self.module.get_ipython = lambda: types.SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        self.module.display = types.SimpleNamespace(display=self.display)  # type: ignore[attr-defined]

    def display(self, data: Any, *, raw: bool, display_id: bool = False) -> Any:
        assert raw
        self.shown.append(data["text/html"])
        return types.SimpleNamespace(update=self.display)

    def __enter__(self) -> Kernel:
        self.patch = mock.patch.dict(sys.modules, {"IPython": self.module})
        self.patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Bars(unittest.TestCase):
    now = 0.0

    def run_bar(self, seconds: float, steps: int = 10, wanted: bool = True) -> None:
        self.now = 0.0
        with _notebook.Progress(wanted, clock=lambda: self.now) as bar:
            bar.begin(steps, "text <1>")
            for _ in range(steps):
                self.now += seconds / steps
                bar.step()

    def written(self, stream: io.StringIO, seconds: float, **options: Any) -> str:
        with mock.patch.object(sys, "stderr", stream), mock.patch.dict(os.environ, {"TERM": "xterm"}):
            self.run_bar(seconds, **options)
        return stream.getvalue()

    def test_terminal(self) -> None:
        said = self.written(Terminal(), 10)
        lines = said.split("\r")
        self.assertEqual(lines[0], "")
        self.assertEqual(lines[1], f"[{'#' * 6}{'.' * 24}] text <1>, 2 of 10, 0:08 left\x1b[K")
        self.assertIn("10 of 10, 0:00 left", lines[-2])
        self.assertEqual(lines[-1], "\x1b[K")  # nothing is left of it
        self.assertTrue(all(len(line) < 80 + 3 for line in lines))

    def test_what_is_quick_is_silent(self) -> None:
        self.assertEqual(self.written(Terminal(), 1.9), "")

    def test_pipe(self) -> None:
        self.assertEqual(self.written(io.StringIO(), 100), "")

    def test_not_wanted(self) -> None:
        self.assertEqual(self.written(Terminal(), 100, wanted=False), "")

    def test_not_too_often(self) -> None:
        self.assertLessEqual(self.written(Terminal(), 4, steps=1000).count("left"), 11)

    def test_terminal_that_is_dumb(self) -> None:
        stream = Terminal()
        with mock.patch.object(sys, "stderr", stream), mock.patch.dict(os.environ, {"TERM": "dumb"}):
            self.run_bar(100)
        self.assertEqual(stream.getvalue(), "")

    def test_no_stderr(self) -> None:
        with mock.patch.object(sys, "stderr", None):
            self.run_bar(100)

    def test_notebook(self) -> None:
        with Kernel() as kernel, mock.patch.object(sys, "stderr", Terminal()) as stream:
            self.run_bar(10)
        self.assertEqual(stream.getvalue(), "")
        self.assertEqual(
            kernel.shown[0], '<progress value="0.2000" max="1"></progress> text &lt;1&gt;, 2 of 10, 0:08 left'
        )
        self.assertEqual(kernel.shown[-1], "")

    def test_ipython_in_a_terminal(self) -> None:
        with Kernel(kernel=None) as kernel:
            self.assertIn("left", self.written(Terminal(), 10))
        self.assertEqual(kernel.shown, [])

    def test_hours(self) -> None:
        self.assertEqual([_notebook._left(x) for x in (0.4, 61, 3599.6)], ["0:00", "1:01", "1:00:00"])

    @unittest.skipUnless(torch, "there is no PyTorch")
    def test_lab(self) -> None:
        def plain(q: Any, k: Any, v: Any, **_: Any) -> Any:
            return loci.attention(q, k, v)

        said: list[str] = []
        options: Any = {"name": "a", "size": "XS", "steps": 2, "length": 24, "dim": 16, "layers": 1, "heads": 1}
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(_notebook, "QUIET", 0),
            mock.patch.object(_notebook, "OFTEN", 0),
            mock.patch.object(sys, "stderr", Terminal()) as stream,
            mock.patch.dict(os.environ, {"TERM": "xterm"}),
        ):
            loci.lab.train(plain, "copy", out=folder, progress=said.append, **options)
            with mock.patch.object(lab_train, "Progress", wraps=_notebook.Progress) as silent:
                loci.lab.train(plain, "copy", out=folder, progress=None, **options)
        self.assertIn("a@torch, copy, seed 0: steps, 1 of 2", stream.getvalue())
        self.assertIn("a@torch, copy, seed 0: tests, 1 of", stream.getvalue())
        self.assertTrue(stream.getvalue().endswith("\r\x1b[K"))
        self.assertEqual(len(said), 1)
        silent.assert_called_once_with(wanted=False)


class Pictures(unittest.TestCase):
    @unittest.skipUnless(PROGRAM, "LOCI does not name the program")
    def test_show(self) -> None:
        assert PROGRAM
        with mock.patch.dict(os.environ, {"LOCI": PROGRAM}):
            picture = plot.show("alibi", "curve", heads=4, length=20)
            self.assertTrue(picture._repr_svg_().startswith("<svg"))
            self.assertIn("alibi", picture.svg)
            self.assertNotEqual(plot.show("alibi", "curve", heads=2, length=20).svg, picture.svg)
            self.assertIn("head 1 of 4", plot.show("alibi", "map", heads=4, head=1, length=8).svg)
            with tempfile.TemporaryDirectory() as folder:
                picture.save(path := os.path.join(folder, "a.svg"))
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), picture.svg)
            with self.assertRaisesRegex(loci.Error, "^rope.* has no map; it has curve"):
                plot.show("rope", "map")  # type: ignore[arg-type]
            with self.assertRaisesRegex(loci.Error, "^unknown encoding 'zz'"):
                plot.show("zz")

    def test_show_refuses(self) -> None:
        nowhere = mock.patch.dict(os.environ, {"PATH": ""}), mock.patch("loci._program.own", return_value=None)
        with nowhere[0], nowhere[1], self.assertRaisesRegex(loci.Error, "there is no program loci"):
            plot.show("alibi")
        with mock.patch.dict(os.environ, {"LOCI": "/nowhere/loci"}):
            with self.assertRaisesRegex(loci.Error, "the program /nowhere/loci cannot be run: No such file"):
                plot.show("alibi")
            with self.assertRaisesRegex(TypeError, "encoding must be a text"):
                plot.show(3)  # type: ignore[arg-type]
            with self.assertRaisesRegex(loci.Error, "'--all' is no encoding"):
                plot.show("--all")
            with self.assertRaisesRegex(loci.Error, "heads"):
                plot.show("alibi", heads=-1)

    @unittest.skipUnless(matplotlib, "there is no matplotlib")
    def test_axes(self) -> None:
        self.assertFalse(hasattr(plot.bias("alibi", 2, 8), "_repr_svg_"))
        with Kernel():
            axes = plot.bias("alibi", 2, 8)
        self.assertIn("<svg", axes._repr_svg_())
        self.assertIn(axes.figure.number, pyplot.get_fignums())
        for made in (copy.deepcopy(axes.figure), pickle.loads(pickle.dumps(axes.figure))):
            self.assertIn("<svg", made.axes[0]._repr_svg_())
        with mock.patch.object(matplotlib, "get_backend", return_value="module://matplotlib_inline.backend_inline"):
            axes._repr_svg_()  # which shows what is open at the end of the cell
        self.assertNotIn(axes.figure.number, pyplot.get_fignums())
        pyplot.close("all")


if __name__ == "__main__":
    unittest.main()
