// Building elements: text is set as text and never parsed, so no name in a plan becomes markup.

const data = JSON.parse(document.getElementById("data").textContent);

const isNarrow = matchMedia("(max-width: 640px)").matches;

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function counted(number, word) {
  return `${number.toLocaleString("en-US")} ${word}${number === 1 ? "" : "s"}`;
}

// `gpt.py:41 (mlp)`, which may break before the function and nowhere else.
function lineCell(source) {
  const parts = source.match(/^([^\s]+:\d+) (.*)$/s);
  return parts ? make("span", {}, make("span", { class: "at" }, parts[1]), " ",
    make("span", { class: "function" }, parts[2])) : source;
}

// A bar of two parts, to the scale of `whole`.
function timeBar(compute, communication, whole) {
  const percent = (part) => `${whole > 0 ? ((100 * part) / whole).toFixed(2) : 0}%`;
  return shape("svg", { class: "bar", "aria-hidden": "true" },
    shape("rect", { class: "compute", width: percent(compute), height: "100%" }),
    shape("rect", {
      class: "communication", x: percent(compute), width: percent(communication), height: "100%",
    }));
}

function oneBar(kind, part, whole) {
  const percent = `${whole > 0 ? ((100 * part) / whole).toFixed(2) : 0}%`;
  return shape("svg", { class: "bar", "aria-hidden": "true" },
    shape("rect", { class: kind, width: percent, height: "100%" }));
}
