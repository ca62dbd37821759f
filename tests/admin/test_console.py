"""The console's files: what a browser gets, that nothing of a page's own runs, and that what the pages call is served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.admin.app import Application
from flintmq.admin.static import FOLDER, POLICY, read
from tests.admin.conftest import Client

FILES = read()
OWN = {path: file.content.decode() for path, file in FILES.items() if not path.startswith("vendor/")}


def test_every_file_is_served_with_the_policy(shared: Client) -> None:
    assert {"index.html", "app.js", "api.js", "ui.js", "style.css", "vendor/preact.js", "pages/overview.js"} <= FILES.keys()
    for path, file in FILES.items():
        answer = shared.get(f"/console/{path}", {})  # nobody signs in before there is a page to do that on
        assert answer.status == 200 and answer.raw == file.content, path
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["content-type"] == file.media and answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY" and "set-cookie" not in answer.headers
    again = shared.get("/console/app.js", {"If-None-Match": FILES["app.js"].tag})
    assert again.status == 304 and again.raw == b""


def test_the_root_leads_to_the_console(shared: Client) -> None:
    for path in ("/", "/console"):
        answer = shared.get(path, {})
        assert answer.status == 302 and answer.headers["location"] == "/console/"
    assert shared.get("/console/", {}).raw == FILES["index.html"].content


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "vendor", "vendor/", "no.js", "static.py", "%00"]
)
def test_no_other_file_is_served(shared: Client, path: str) -> None:
    assert shared.get(f"/console/{path}", {}).status == 404


def test_the_policy_lets_nothing_else_run() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == "'self'" and rules["style-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in POLICY and rules["require-trusted-types-for"] == "'script'"


def test_a_page_of_another_name_gets_no_console(shared: Client) -> None:
    assert shared.get("/console/", {"Host": "evil.example"}).status == 421
    # a link leads here; its site reads nothing of the API
    assert shared.get("/console/", {"Sec-Fetch-Site": "cross-site"}).status == 200
    assert shared.get("/console/../api/v1/overview", {"Sec-Fetch-Site": "cross-site"}).status in (403, 404)
    assert shared.get("/api/v1/overview", {"Sec-Fetch-Site": "cross-site"}).status == 403


def test_nothing_is_inline_and_nothing_makes_markup_of_text() -> None:
    page = OWN["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=|javascript:", page)
    for path, text in OWN.items():
        if path.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|style=|localStorage|sessionStorage|\.cookie\b",
                text,
            ), path
        # no file of another machine
        for url in re.findall(r"https?://[^\s\"'`)]+", text):
            assert url.startswith("http://www.w3.org/"), (path, url)


def test_a_count_stands_before_no_plural_of_its_own() -> None:
    """`1 consumers` is no English: ui.many writes the noun."""
    for path, text in OWN.items():
        if path.endswith(".js"):
            assert not re.search(
                r"\$\{(?:count\()?[\w.]+\)?\} (?:queue|connection|channel|consumer|message|binding|exchange|vhost)s\b", text
            ), path


def test_the_page_and_its_names_change_together() -> None:
    """One state holds both: with two, a page asked for `/undefined` while the other one was loaded."""
    text = OWN["app.js"]
    assert text.count("place()") == 2 and text.count("turn({") == 1 and "turn({ at: to, Page: found," in text


def test_what_an_administrator_makes_anew_replaces_nothing() -> None:
    assert '"if-none-match": "*"' in OWN["api.js"]
    for caption in ("Users", "Virtual hosts"):
        assert re.search(rf'caption="{caption}" thing="[a-z ]+" once ', OWN["pages/admin.js"]), caption


def test_the_vendored_files_are_those_that_were_vendored() -> None:
    tool = Path(__file__).parents[2] / "tools/vendor_console.py"
    subprocess.run([sys.executable, str(tool), "--check"], check=True)
    assert all((FOLDER / "vendor" / f"{name}.LICENSE.txt").read_text() for name in ("preact", "htm", "uplot"))


def test_each_module_that_is_named_is_there() -> None:
    for path, text in OWN.items():
        for name in re.findall(r"(?:from |import\()\"(\.[^\"]+)\"", text):
            assert (FOLDER / path).parent.joinpath(name).resolve().is_file(), (path, name)
    pages = set(re.findall(r'\["(\w+)", "[^"]+", "\w"\]', OWN["app.js"]))
    aliases = dict(re.findall(r"(\w+): \"(\w+)\"", OWN["app.js"].split("MODULES = ")[1].split(";")[0]))
    assert len(pages) >= 14
    for page in pages | aliases.keys():
        module = OWN[f"pages/{aliases.get(page, page)}.js"]
        exported = module.split("export const pages = ")[1]
        assert re.search(rf"\b{page}:", exported), page


def test_each_path_that_the_pages_call_is_served(shared: Client) -> None:
    served = {one.path for one in Application(shared.node.http._parts).operations}  # type: ignore[union-attr]
    shapes = [re.compile("^" + re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + "$") for path in served]
    called = set()
    for path, text in OWN.items():
        if path.endswith(".js"):
            called |= {(path, one) for one in re.findall(r"[`\"](/api/[^`\"\s]*)", text)}
    assert len(called) > 30
    for path, one in called:
        wanted = re.sub(r"\$\{[^}]*\}", "x", one).split("?")[0].rstrip("/")
        if wanted in ("/api", "/api/queuesx", "/api/bindings/x/e/x/q/x"):  # the last part is put together
            continue
        assert any(shape.match(wanted) for shape in shapes), (path, one)
