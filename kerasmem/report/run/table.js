// A table whose columns sort at a click, or at Enter, on their heads.

const MOST_ROWS = 300;

// A column: { name, value(row) to sort by, show(row) for the cell, text: true to align left }.
function sortableTable(columns, sortedBy) {
  let rows = [];
  let order = { column: sortedBy, descending: true };
  const caption = element("span", { class: "words" });
  const heads = columns.map((column, i) => element("th", { scope: "col", class: column.text ? "text" : null },
    element("button", { type: "button", onclick: () => sortBy(i) }, column.name)));
  const body = element("tbody");
  const note = element("p", { class: "note" });
  const table = element("table", { class: "sortable" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
  const node = element("div", {},
    element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "What was in use" }, table), note);

  function sortBy(column) {
    const descending = order.column === column ? !order.descending : !columns[column].text;
    order = { column, descending };
    draw();
    announce(`Sorted by ${columns[column].name}, ${descending ? "descending" : "ascending"}`);
  }

  function draw() {
    const { value } = columns[order.column];
    const sign = order.descending ? -1 : 1;
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const sorted = rows.toSorted((a, b) => sign * compare(value(a), value(b)));
    heads.forEach((head, i) => head.setAttribute("aria-sort",
      i !== order.column ? "none" : order.descending ? "descending" : "ascending"));
    body.replaceChildren(...sorted.slice(0, MOST_ROWS).map((row) => element("tr", {},
      ...columns.map((column, i) => element(i ? "td" : "th",
        { class: column.text ? "text" : null, scope: i ? null : "row" }, column.show(row))))));
    const left = sorted.length - MOST_ROWS;
    note.textContent = left > 0 ? `${countText(left)} more rows come after these in this order.` : "";
  }

  function show(newRows, title) {
    rows = newRows;
    caption.textContent = title;
    draw();
  }
  return { node, show };
}
