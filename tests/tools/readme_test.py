"""What README.md and its neighbours show exists: programs are the built ones, links lead somewhere, commands are those of the tools.

Usage: readme_test.py SOURCE_FOLDER
"""
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1])
PAGES = [SOURCE / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "tests/data/README.md")]
PAGES += sorted((SOURCE / "docs").rglob("*.md")) + [SOURCE / "bindings/python/README.md"]


def blocks(language, page="README.md"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (SOURCE / page).read_text(), re.MULTILINE | re.DOTALL)


def example(name):
    return (SOURCE / "examples" / name).read_text()


def anchors(page):
    """What a link into a page may name: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Readme(unittest.TestCase):
    def test_programs_are_those_that_are_built_and_run(self):
        self.assertEqual(blocks("c"), [example("attention.c")])
        self.assertEqual(blocks("cpp"), [example("attention.cpp")])
        self.assertEqual(blocks("c", "docs/score-functions.md"), [example("relative_bias.c"), example("additive_attention.c")])

    def test_links_lead_to_files(self):
        links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)]+)\)", page.read_text())]
        files = [(page, target.split("#")[0]) for page, target in links if "://" not in target]
        self.assertGreater(len(files), 5)
        for page, file in files:
            self.assertTrue((page.parent / file).exists(), f"{page.name}: {file}")

    def test_links_into_a_page_lead_to_headings(self):
        links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^):]*#[^)]+)\)", page.read_text())]
        self.assertGreater(len(links), 5)
        for page, target in links:
            file, anchor = target.split("#")
            self.assertIn(anchor, anchors(page.parent / file if file else page), f"{page.name}: {target}")

    def test_contents_are_the_headings(self):
        for page in SOURCE / "docs/semantics.md", SOURCE / "docs/integration/python.md":
            contents = re.search(r"^## Contents\n(.*?)^## ", page.read_text(), re.MULTILINE | re.DOTALL).group(1)
            listed = re.findall(r"\[([^\]]+)\]\(#", contents)
            headings = re.findall(r"^###? (.*)$", page.read_text(), re.MULTILINE)
            self.assertEqual(listed, [heading for heading in headings if heading != "Contents"])

    def test_named_files_exist(self):
        for page in PAGES:
            for name in re.findall(r"`((?:lib|include|tests|tools|bench|bindings|examples|cmake|docs)/[\w./-]*)", page.read_text()):
                self.assertTrue((SOURCE / name).exists(), f"{page.name}: {name}")

    def test_commands_of_the_development_script_exist(self):
        script = (SOURCE / "tools/dev").read_text()
        used = {command for page in PAGES for command in re.findall(r"tools/dev ([a-z]+)", page.read_text())}
        self.assertLessEqual({"run", "test"}, used)
        for command in used:
            self.assertRegex(script, rf"(?m)^  {command}\b")

    def test_the_latest_released_change_is_of_this_version(self):
        header = (SOURCE / "include/fovea/fovea.h").read_text()
        version = ".".join(re.findall(r"#define FOVEA_VERSION_\w+ (\d+)", header))
        self.assertEqual(re.search(r"^## (\d\S*)", (SOURCE / "CHANGELOG.md").read_text(), re.MULTILINE).group(1), version)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
