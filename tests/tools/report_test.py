"""bench/report.py puts what it was given between the marks of its set, and leaves the rest of a page as it is.

Usage: report_test.py SOURCE_FOLDER
"""
import json
import pathlib
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
"""
TIMED = {"fovea": {"seconds": 1e-3, "flops_per_second": 2e11, "share": 0.75, "spread": 0.01, "error_over_bound": 0.5}}


class Report(unittest.TestCase):
    def page(self, results, **report):
        """The page after a report of one level with these results."""
        with tempfile.TemporaryDirectory() as folder:
            written, page = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "page.md"
            level = {"isa": "avx2", "peak": {"fma": 1e11, "exp2": 1e10}, "results": results}
            written.write_text(json.dumps({"fovea": "0", "processor": "a CPU", "date": "today", "threads": 1, "disturbed_kept": False,
                                           "levels": [level], **report}))
            page.write_text(PAGE)
            self.run = subprocess.run([sys.executable, SOURCE / "bench/report.py", written, page], capture_output=True, text=True)
            return page.read_text()

    def test_a_set_changes_its_own_table_alone(self):
        page = self.page([{"shape": "1,8,8,64,64,64", "decode": False, **TIMED}])
        self.assertIn("| 1,8,8,64,64,64 | 200 | 75.0% |", page)
        self.assertNotIn("the old shapes", page)
        self.assertIn("the old decode calls", page)

    def test_a_call_without_a_figure_stays_in_the_table_of_its_set(self):
        page = self.page([{"shape": "1,8,8,1,4096,128", "decode": True, "failure": "the machine was too busy"}])
        self.assertIn("the old shapes", page)
        self.assertIn("| 1,8,8,1,4096,128 | the machine was too busy |", page)
        self.assertNotIn("the old decode calls", page)

    def test_disturbed_figures_come_on_no_page(self):
        self.assertEqual(self.page([{"shape": "1,8,8,64,64,64", "decode": False, **TIMED}], disturbed_kept=True), PAGE)
        self.assertNotEqual(self.run.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
