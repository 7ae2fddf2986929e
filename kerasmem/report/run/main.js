// Brings the page to life, once all of it is there.

async function start() {
  document.documentElement.classList.add("scripted");
  startTheme();
  const { fits, panels, gradients, timelines } = await unpack(document.getElementById("packed").textContent);
  document.querySelectorAll("[data-panel]").forEach((host) => {
    const { lines, unit } = panels[host.dataset.panel];
    if (lines.length) lineChart(host, lines, { axis: unit === "bytes" ? "bytes" : numberAxisOf(lines), fits });
  });
  if (timelines.length) timelineSection(document.getElementById("timeline-view"), timelines);
  if (gradients.epochs.length) showGradients(gradients, fits);
  document.documentElement.dataset.ready = "true";
}

function showGradients({ epochs, norm, norm_max: largest, nonfinite_steps: bad, ...flow }, fits) {
  const lines = [{ name: "mean", style: "peak", x: epochs, y: norm },
    { name: "largest", style: "largest", x: epochs, y: largest }];
  const marks = [...epochs].filter((_, i) => bad[i] > 0);
  lineChart(document.getElementById("norm-chart"), lines, { axis: "log", marks, fits });
  if (flow.paths.length) heatmap(document.getElementById("heatmap"), flow);
}

start();
