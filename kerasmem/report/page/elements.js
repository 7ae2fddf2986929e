// Creates elements. Text is always set as text, so that recorded data is never parsed as HTML.

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

// Announces a message to screen readers.
function announce(text) {
  listener.textContent = text;
}
