// Tables that are sorted by a click or Enter on a column header.

const MOST_ROWS = 300;

// Turns column headers into buttons; returns a function that redraws the table.
// columns: [{ name, value(row), text: true to sort from A to Z first }]; order: { column, descending }.
// draw: receives the comparison function for rows.
function sortHeads(heads, columns, order, draw) {
  heads.forEach((head, i) => head.replaceChildren(element("button", { type: "button", onclick: () => sortBy(i) }, columns[i].name)));

  function sortBy(column) {
    const descending = order.column === column ? !order.descending : !columns[column].text;
    Object.assign(order, { column, descending });
    redraw();
    announce(`Sorted by ${columns[column].name}, ${descending ? "descending" : "ascending"}`);
  }

  function redraw() {
    const { value } = columns[order.column];
    const sign = order.descending ? -1 : 1;
    heads.forEach((head, i) => head.setAttribute("aria-sort",
      i !== order.column ? "none" : order.descending ? "descending" : "ascending"));
    draw((one, other) => {
      const [a, b] = [value(one), value(other)];
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    });
  }
  return redraw;
}

// A table written by Python. Rows keep their order until a header is clicked.
function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const [body] = table.tBodies;
  if (body.rows.length < 2) return;
  const columns = heads.map((head, i) => {
    const text = head.classList.contains("text");
    const words = (row) => row.cells[i].textContent;
    return { name: head.textContent, text, value: text ? words : (row) => quantityOf(words(row)) };
  });
  table.classList.add("sortable");
  sortHeads(heads, columns, { column: -1, descending: false },
    (compare) => body.append(...[...body.rows].sort(compare)));
}

// A table with changing rows. A column: { name, value(row) to sort by, show(row) for the cell, text }.
function sortableTable(columns, sortedBy) {
  let rows = [];
  const caption = element("span", { class: "words" });
  const heads = columns.map((column) => element("th", { scope: "col", class: column.text ? "text" : null }));
  const body = element("tbody");
  const note = element("p", { class: "note" });
  const table = element("table", { class: "sortable" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
  const node = element("div", {},
    element("div", { class: "scroll", role: "group", tabindex: "0", "aria-label": "Memory in use" }, table), note);
  const draw = sortHeads(heads, columns, { column: sortedBy, descending: true }, (compare) => {
    body.replaceChildren(...rows.toSorted(compare).slice(0, MOST_ROWS).map((row) => element("tr", {},
      ...columns.map((column, i) => element(i ? "td" : "th",
        { class: column.text ? "text" : null, scope: i ? null : "row" }, column.show(row))))));
    const left = rows.length - MOST_ROWS;
    note.textContent = left > 0 ? `${countText(left)} more rows come after these in this order.` : "";
  });

  function show(newRows, title) {
    rows = newRows;
    caption.textContent = title;
    draw();
  }
  return { node, show };
}
