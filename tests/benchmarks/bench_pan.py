"""What a memory timeline of many blocks costs to pan and to zoom in a real browser.

Run by hand; it takes Chromium and `pip install -e '.[dev]'`:

    python -m tests.benchmarks.bench_pan [--blocks 100000]

A frame's script is timed, from before it runs until after it: what the browser paints
then is not in it. At 60 frames a second a frame has 16.7 ms for all.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from kerasmem.report.run import write_run_page
from tests.report.browser import chromium, opened, playwright
from tests.report.runs import large_run

FRAMES = """async ([keys, count]) => {
  const plot = document.querySelector("#timeline-view .plot");
  const times = [];
  for (let i = 0; i < count; i++) {
    let begin = 0;
    requestAnimationFrame(() => { begin = performance.now(); });
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: keys[i % keys.length] }));
    await new Promise((done) => requestAnimationFrame(() => {
      times.push(performance.now() - begin);
      done();
    }));
  }
  return times;
}"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, playwright()() as api:
        path = Path(folder, "run.html")
        write_run_page(large_run(allocations=options.blocks), path)
        print(f"page of {options.blocks:,} blocks: {path.stat().st_size / 1e6:.1f} MB")
        browser = api.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with opened(browser, path) as page:
            for look in ("Category", "Layer", "Address"):
                page.locator("#timeline-view").get_by_role(
                    "button", name=look, exact=True
                ).click()
                tell(f"{look}, all of it", frames(page, "0"))
                tell(f"{look}, zoomed in and out", frames(page, "+", "+", "-", "-"))
                frames(page, "+", "+", count=2)
                pans = frames(page, "ArrowRight", "ArrowLeft")
                tell(f"{look}, half of it, panned", pans)
        browser.close()


def frames(page, *keys, count=60):
    """Press keys in turns, and return the milliseconds of each frame."""
    return sorted(page.evaluate(FRAMES, [keys, count]))


def tell(name, times):
    high = times[int(0.95 * (len(times) - 1))]
    print(f"{name:32} median {statistics.median(times):6.1f} ms, 95 % {high:6.1f} ms")


if __name__ == "__main__":
    main()
