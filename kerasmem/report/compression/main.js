// Charts of the compression page.

startPage(({ search, bars }) => {
  if (search) pointChart(document.getElementById("search-chart"), search);
  for (const [name, chart] of Object.entries(bars)) barChart(document.getElementById(`${name}-chart`), chart);
});
