// What only the page of a compression draws.

startPage(({ search }) => {
  if (search) pointChart(document.getElementById("search-chart"), search);
});
