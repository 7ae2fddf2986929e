// Initializes a page after it has loaded.

// show: draws the specific content of this page from the packed data.
async function startPage(show) {
  document.documentElement.classList.add("scripted");
  startTheme();
  document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
  const { fits, panels, ...own } = await unpack(document.getElementById("packed").textContent);
  document.querySelectorAll("[data-panel]").forEach((host) => {
    const { lines, unit, step, marks } = panels[host.dataset.panel];
    const axis = unit === "number" ? numberAxisOf(lines) : unit;
    if (lines.length) lineChart(host, lines, { axis, step, fits: step === "epoch" ? fits : [], marks });
  });
  show(own);
  document.documentElement.dataset.ready = "true";
}
