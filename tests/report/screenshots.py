"""A report in headless Chromium: pictures of it, light, dark and as printed, and what can be said of it without looking.

    python3 tests/report/screenshots.py RUN/report.html FOLDER     # light.png, dark.png, print.pdf, print-*.png

Prints what is wrong, and ends with 1 if anything is. A copy of the page with a script behind it measures itself: nothing was
fetched, nothing is wider than the page but what scrolls, and text stands out from what is behind it (WCAG 2.1, 1.4.3: 4.5 to 1).
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CONTRAST = 4.5
WIDTH = 1100

MEASURE = r"""<script>
window.addEventListener("load", () => {
  const parse = c => { const m = c.match(/[\d.]+/g); return m ? m.map(Number).concat(m.length < 4 ? [1] : []) : [0, 0, 0, 0]; };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat([1]);
  const light = c => { const f = c.slice(0, 3).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const ratio = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
  const page = e => { const up = []; for (; e; e = e.parentElement) up.unshift(e);
    return up.reduce((c, x) => over(parse(getComputedStyle(x).backgroundColor), c), [255, 255, 255, 1]); };
  /* in a picture: the shapes before the text that hold its middle */
  const behind = (t, back) => { const b = t.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2;
    for (const r of t.ownerSVGElement.querySelectorAll("rect")) {
      if (!(r.compareDocumentPosition(t) & 4)) continue;
      const q = r.getBoundingClientRect(), s = getComputedStyle(r);
      if (s.fill === "none" || x < q.left || x > q.right || y < q.top || y > q.bottom) continue;
      const c = parse(s.fill); c[3] *= s.fillOpacity; back = over(c, back); }
    return back; };
  const found = {dark: matchMedia("(prefers-color-scheme: dark)").matches, fetched: performance.getEntriesByType("resource").map(e => e.name),
    wide: [], faint: [], texts: 0, height: document.documentElement.scrollHeight, svgs: document.querySelectorAll("svg").length};
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > room) found.wide.push("the page: " + document.documentElement.scrollWidth + " of " + room);
  document.querySelectorAll("details").forEach(d => d.open = true);
  for (const e of document.body.querySelectorAll("*")) {
    const scrolls = !PAPER && e.closest(".wide, pre"), box = e.getBoundingClientRect();
    if (!scrolls && !e.closest("script") && box.right > room + 1) found.wide.push(e.tagName + ": " + Math.round(box.right) + " of " + room);
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ["SCRIPT", "STYLE", "title", "style"].includes(e.tagName)) continue;
    const picture = e.ownerSVGElement, style = getComputedStyle(e), back = page(picture ? picture.parentElement : e);
    if (box.width === 0) continue;
    found.texts++;
    const below = picture ? behind(e, back) : back, color = parse(picture ? style.fill : style.color);
    if (picture) color[3] *= style.fillOpacity;
    const r = ratio(over(color, below), below);
    if (r < LEAST) found.faint.push(e.textContent.trim().slice(0, 40) + ": " + r.toFixed(2));
  }
  const to = document.createElement("pre"); to.id = "measured"; to.textContent = JSON.stringify(found); document.body.append(to);
});
</script>""".replace("LEAST", str(CONTRAST))


def chromium(page, dark, *arguments, home):
    """Runs it on this page; no name is ever resolved."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={home}", "--enable-logging=stderr",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", *arguments, pathlib.Path(page).resolve().as_uri()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, env={**os.environ, "HOME": str(home)})
    if done.returncode != 0:
        raise RuntimeError(f"chromium ended with {done.returncode}: {done.stderr}")
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


PAPER = 718  # CSS pixels of A4 within Chromium's margins


def measure(page, dark, width=WIDTH, paper=False):
    """What a copy of the page says of itself in a window so wide; complaints, and all of it. Paper: by what the page's style says
    of printing; there nothing scrolls."""
    with tempfile.TemporaryDirectory(prefix="trireme-page-") as home:
        copy = pathlib.Path(home, "page.html")
        text = pathlib.Path(page).read_text().replace("</body>", MEASURE.replace("PAPER", str(paper).lower()) + "</body>")
        copy.write_text(text.replace("@media print", "@media all") if paper else text)
        dom, said = chromium(copy, dark, f"--window-size={width},900", "--dump-dom", home=home)
    text = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.S)
    if not text:
        return ["the page's script did not end"], {}
    found = json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    wrong = [f"console: {line}" for line in said]
    wrong += [f"fetched {name}" for name in found["fetched"]]
    wrong += [f"too wide: {what}" for what in found["wide"]] + [f"hard to read: {what}" for what in found["faint"]]
    if found["dark"] != dark:
        wrong.append("the wanted colors were not asked for")
    return wrong, found


def pictures(page, folder):
    """light.png, dark.png, print.pdf, and its pages where pdftoppm is there."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    height = min(measure(page, False)[1].get("height", 6000), 16000)
    with tempfile.TemporaryDirectory(prefix="trireme-page-") as home:
        for name, dark in (("light", False), ("dark", True)):
            chromium(page, dark, f"--window-size={WIDTH},{height}", f"--screenshot={folder / name}.png", home=home)
        chromium(page, False, "--no-pdf-header-footer", f"--print-to-pdf={folder / 'print.pdf'}", home=home)
    if shutil.which("pdftoppm"):
        subprocess.run(["pdftoppm", "-png", "-r", "60", folder / "print.pdf", folder / "print"], check=True)


def main(page, folder):
    if not CHROMIUM:
        sys.exit("there is no chromium here")
    wrong = [f"{'dark' if dark else 'light'}, {width} wide: {what}" for dark in (False, True) for width in (WIDTH, 420)
             for what in measure(page, dark, width)[0]]
    wrong += [f"on paper: {what}" for what in measure(page, False, PAPER, True)[0]]
    pictures(page, folder)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
