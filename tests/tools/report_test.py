"""bench/report.py puts what it was given between the marks of its set, and leaves the rest of a page as it is; bench/plot.py draws it.

Usage: report_test.py SOURCE_FOLDER. Needs tools/requirements.txt.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1])
PAGE = """text
<!-- measured: begin -->
the old shapes
<!-- measured: end -->
<!-- decode: begin -->
the old decode calls
<!-- decode: end -->
<!-- core16: begin -->
<!-- core16: end -->
<!-- scaling: begin -->
<!-- scaling: end -->
"""
TIMED = {"fovea": {"seconds": 1e-3, "flops_per_second": 2e11, "share": 0.75, "spread": 0.01, "error_over_bound": 0.5}}


def report(results=(), more=None, **changes):
    """Of one level with these results."""
    level = {"isa": "avx2", "peak": {"fma": 1e11, "exp2": 1e10}, "results": list(results), **(more or {})}
    return {"fovea": "0", "processor": "a CPU", "date": "today", "threads": 1, "disturbed_kept": False, "levels": [level], **changes}


def shape(text, type_="f32", **more):
    return {"shape": text, "type": type_, "decode": False, "flops_per_byte": 16, **TIMED, **more}


def cache(text, type_="f32"):
    return shape(text, type_, decode=True, bytes=1e8, bandwidth=2e10, bandwidth_share=0.5, read_bandwidth=4e10, roofline_share=0.6)


class Report(unittest.TestCase):
    def page(self, results, **changes):
        """The page after a report of one level with these results."""
        with tempfile.TemporaryDirectory() as folder:
            written, page = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "page.md"
            written.write_text(json.dumps(report(results, **changes)))
            page.write_text(PAGE)
            self.run = subprocess.run([sys.executable, SOURCE / "bench/report.py", written, page], capture_output=True, text=True)
            return page.read_text()

    def test_a_set_changes_its_own_table_alone(self):
        page = self.page([shape("1,8,8,64,64,64")])
        self.assertIn("| 1,8,8,64,64,64 | 200 | 75.0% |", page)
        self.assertNotIn("the old shapes", page)
        self.assertIn("the old decode calls", page)

    def test_a_call_without_a_figure_stays_in_the_table_of_its_set(self):
        page = self.page([{"shape": "1,8,8,1,4096,128", "type": "f32", "decode": True, "failure": "the machine was too busy"}])
        self.assertIn("the old shapes", page)
        self.assertIn("| 1,8,8,1,4096,128 | the machine was too busy |", page)
        self.assertNotIn("the old decode calls", page)

    def test_disturbed_figures_come_on_no_page(self):
        self.assertEqual(self.page([shape("1,8,8,64,64,64")], disturbed_kept=True), PAGE)
        self.assertNotEqual(self.run.returncode, 0)

    def test_types_of_a_shape_are_columns(self):
        page = self.page([shape("1,8,8,64,64,64 f16", "f16"), shape("1,8,8,64,64,64 bf16", "bf16")])
        self.assertIn("| shape | avx2, f16 | avx2, bf16 |\n|---|---|---|\n| 1,8,8,64,64,64 | 200 (75%) | 200 (75%) |", page)
        self.assertIn("the old shapes", page)

    def test_scaling_is_beside_what_the_machine_gives(self):
        page = self.page([], more={"scaling": [{"shape": "1,8,8,64,64,64", "threads": 2, "ratio": 1.9, "machine_ratio": 2.0},
                                               {"shape": "1,8,8,1,4096,64", "threads": 2, "failure": "the machine was too busy"}]})
        self.assertIn("| 1,8,8,64,64,64 | 2 | 1.90 | 2.00 |\n| 1,8,8,1,4096,64 | 2 | the machine was too busy | |", page)


class Plots(unittest.TestCase):
    def test_each_part_is_drawn_where_there_are_figures(self):
        results = [shape("1,8,8,64,64,64"), shape("1,8,8,64,64,64 causal bf16", "bf16"), cache("1,32,8,1,32768,128 i8", "i8"),
                   {"shape": "1,8,8,1,4096,128", "type": "f32", "decode": True, "failure": "the machine was too busy"}]
        for made, names in ((report([cache("1,8,8,1,4096,128")]), ["-decode", "-roofline-avx2"]),
                            (report(results, {"scaling": [{"shape": "1,8,8,64,64,64", "threads": 2, "ratio": 1.9, "machine_ratio": 2.0}]}),
                             ["", "-decode", "-roofline-avx2", "-scaling"])):
            with tempfile.TemporaryDirectory() as folder:
                written = pathlib.Path(folder, "report.json")
                written.write_text(json.dumps(made))
                page = pathlib.Path(folder, "page.md")
                page.write_text("".join(f"<!-- plot-{kind}: {edge} -->\n" for kind in ("roofline", "decode", "scaling") for edge in ("begin", "end")))
                subprocess.run([sys.executable, SOURCE / "bench/plot.py", f"{folder}/plot", written, "--markdown", page], check=True)
                shown = re.findall(r"\]\((\S+)\)", page.read_text())
                self.assertEqual(sorted(shown), sorted(f"plot{name}.svg" for name in names if name))
                drawn = sorted(path.name for path in pathlib.Path(folder).glob("plot*") if path.stat().st_size > 1000)
                self.assertEqual(drawn, sorted(f"plot{name}.{ending}" for name in names for ending in ("png", "svg")))

    def test_a_report_without_figures_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            written = pathlib.Path(folder, "report.json")
            written.write_text(json.dumps(report()))
            done = subprocess.run([sys.executable, SOURCE / "bench/plot.py", f"{folder}/plot", written], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("no figures", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
