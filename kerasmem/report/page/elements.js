// Building elements. Text is only ever set as text: nothing recorded is read as HTML.

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const listener = element("div", { class: "unseen", role: "status", "aria-live": "polite" });
document.body.append(listener);

// Says something to those who listen to the page.
function announce(text) {
  listener.textContent = text;
}
