"""A headless Chromium for tests of pages: what it fetches, draws and lays out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "Chromium is not found: install it, as with `apt-get install chromium`, or name its program in "
    "OPUS_TEST_CHROMIUM_BIN. `make test CHROMIUM=no` leaves out what needs it"
)
# No name is resolved: neither a page's requests nor the browser's own may leave the machine.
QUIET = (
    "--headless",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
# Measures a page from within; a copy of it carries this, without the policy that forbids scripts.
MEASURE = """
<script>
function box(e) { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }
function meet(a, b) { return a[0] < b[2] - 1 && b[0] < a[2] - 1 && a[1] < b[3] - 1 && b[1] < a[3] - 1; }
const found = {width: innerWidth, scroll_width: document.documentElement.scrollWidth, plots: []};
for (const svg of document.querySelectorAll("svg")) {
  const own = box(svg), texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim());
  const boxes = texts.map(t => [t.textContent.trim(), ...box(t)]);
  const plot = {texts: boxes.length, width: own[2] - own[0], outside: [], overlapping: [], small: []};
  boxes.forEach(([text, ...b], i) => {
    const inside = b[0] > own[0] - 1 && b[1] > own[1] - 1 && b[2] < own[2] + 1 && b[3] < own[3] + 1;
    if (!inside) plot.outside.push(text);
    if (Math.min(b[2] - b[0], b[3] - b[1]) < 4) plot.small.push(text);
    boxes.slice(i + 1).forEach(([other, ...c]) => { if (meet(b, c)) plot.overlapping.push([text, other]); });
  });
  found.plots.push(plot);
}
const pre = document.createElement("pre");
pre.id = "measured";
pre.textContent = JSON.stringify(found);
document.body.appendChild(pre);
</script>
"""
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n')


def program() -> str | None:
    """Chromium's program on this machine, None when there is none."""
    named = os.environ.get("OPUS_TEST_CHROMIUM_BIN")
    return named or next((found for found in map(shutil.which, NAMES) if found), None)


@dataclass
class Chromium:
    """The browser, with a folder for what it writes."""

    program: str
    folder: Path

    def requests(self, page: Path) -> list[str]:
        """Every address that the page asks for while it is shown; not what the browser asks for by itself."""
        log = self.folder / "requests.json"
        self._run(page, f"--log-net-log={log}", "--dump-dom")
        events = json.loads(log.read_text())["events"]
        asked = [event["params"] for event in events if "network_isolation_key" in event.get("params", {})]
        return [each["url"] for each in asked if each["network_isolation_key"].startswith("file://")]

    def screenshot(self, page: Path, width: int = 1200, height: int = 2400) -> Path:
        """A picture of the page."""
        picture = self.folder / "page.png"
        self._run(page, f"--screenshot={picture}", f"--window-size={width},{height}")
        return picture

    def measured(self, page: Path, width: int = 1200) -> dict[str, Any]:
        """Its width, and of every plot the texts that are cut off, overlap or are tiny."""
        text, policies = POLICY.subn("", page.read_text())
        assert policies == 1, "the page has a policy"
        copy = self.folder / "measured.html"
        copy.write_text(text.replace("</body>", MEASURE + "</body>"))
        shown = self._run(copy, "--dump-dom", f"--window-size={width},2000")
        found = re.search(r'<pre id="measured">(.*?)</pre>', shown, re.DOTALL)
        assert found is not None, "the page did not run its script"
        measured: dict[str, Any] = json.loads(unescape(found[1]))
        return measured

    def _run(self, page: Path, *arguments: str) -> str:
        profile = f"--user-data-dir={self.folder / 'profile'}"
        command = [self.program, *QUIET, profile, *arguments, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["why"]:
        sys.exit(MISSING)
    sys.exit(program() is None)
