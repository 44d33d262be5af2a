"""Puts a table between the marks of a Markdown page: lines of their own, <!-- NAME: begin --> and <!-- NAME: end -->."""
import pathlib


def put(page, name, text):
    content = pathlib.Path(page).read_text()
    begin, end = (f"<!-- {name}: {edge} -->\n" for edge in ("begin", "end"))
    if content.count(begin) != 1 or content.count(end) != 1:
        raise SystemExit(f"{page}: needs {begin.strip()} and {end.strip()} once each")
    before, rest = content.split(begin)
    pathlib.Path(page).write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}")
