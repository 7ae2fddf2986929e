// Charts of the run page.

startPage(({ timelines, flow }) => {
  if (timelines.length) timelineSection(document.getElementById("timeline-view"), timelines);
  if (flow.paths.length) heatmap(document.getElementById("heatmap"), flow);
});
