# SPDX-License-Identifier: MIT
"""What MkDocs asks us while it makes the site (mkdocs.yml): fragments as on GitHub, and the parts
of the navigation that follow from the tree, so that a new encoding or header needs no line there."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def slug(text, separator):
    """The fragment that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", text.strip().lower()).replace(" ", separator)


def encodings():
    """The pages of encodings, by the place where they enter: as docs/encodings.md lists them."""
    places = {"embed": "Added to embeddings", "rotate": "Rotations", "score": "Scores", "": "None"}
    groups = {}
    with open(os.path.join(ROOT, "docs", "encodings.md"), encoding="utf-8") as file:
        for name, place in re.findall(r"^\| \[`(\w+)`\]\(encodings/\w+\.md\) \| *([a-z, ]*?) *\|", file.read(), re.M):
            title = places.get(place, "Weights, values, states")
            groups.setdefault(title, []).append({name: f"docs/encodings/{name}.md"})
    none = groups.pop("None", [])
    return none + [{title: pages} for title, pages in groups.items()]


def reference(pages, folder):
    """The generated pages of one language, that of the whole library first."""
    names = sorted(name[:-3] for name in os.listdir(os.path.join(pages, "api", folder)))
    names.sort(key=lambda name: name != "loci")
    title = "loci/{}.h" if folder == "c" else "{}"
    return [{title.format(name): f"api/{folder}/{name}.md"} for name in names]


def filled(nav, pages):
    """The navigation with its parts in the place of @NAME."""
    made = []
    for entry in nav:
        if isinstance(entry, dict):
            title, value = next(iter(entry.items()))
            made.append({title: filled(value, pages) if isinstance(value, list) else value})
        elif entry == "@encodings":
            made += encodings()
        elif entry in ("@c", "@python"):
            made += reference(pages, entry[1:])
        else:
            made.append(entry)
    return made


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = slug
    config.nav = filled(config.nav, config.docs_dir)
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"^project\(loci VERSION ([0-9.]+)", file.read(), re.M)[1]
    config.copyright = f"loci {version}, MIT licence"
    return config
