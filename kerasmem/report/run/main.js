// What only the page of a run draws.

startPage(({ timelines, flow }) => {
  if (timelines.length) timelineSection(document.getElementById("timeline-view"), timelines);
  if (flow.paths.length) heatmap(document.getElementById("heatmap"), flow);
});
