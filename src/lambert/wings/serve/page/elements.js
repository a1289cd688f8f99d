// Elements, texts and numbers. A text becomes a text node, never HTML.

const byId = (id) => document.getElementById(id);

/** An element: `text`, `class` and `on` (listeners by event) beside attributes; false and null leave one out. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1%";
  if (share < 1 && share > 0.999) return "> 99.9%";
  return `${(100 * share).toFixed(1)}%`;
}

function number(value) {
  const size = Math.abs(value);
  return (size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : value.toFixed(3)).replace("-", "−");
}

function milliseconds(time) {
  return time < 1000 ? `${Math.round(time)} ms` : `${(time / 1000).toFixed(1)} s`;
}

/** A text of the service as one line that is not longer than `most` characters. */
function shortened(text, most = 60) {
  const characters = Array.from(text.replace(/\s+/g, " ").trim());
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : characters.join("");
}

/** Rows {label, value, share, marked}: share in [0, 1] is the length of the bar; a marked row has a tick. */
function bars(rows, shown = 12) {
  const items = rows.map(({ label, value, share, marked }) => {
    const fill = element("span", { class: "fill" });
    fill.style.inlineSize = `${100 * Math.min(1, Math.max(0, share))}%`;
    return element("li", { class: marked ? "marked" : null },
      element("span", { class: "name", dir: "auto", text: label }),
      marked ? element("span", { class: "tick", text: marked }) : null,
      element("span", { class: "value", text: value }),
      element("span", { class: "track", "aria-hidden": "true" }, fill));
  });
  const list = element("ol", { class: "bars" }, ...items.slice(0, shown));
  const rest = items.slice(shown);
  if (!rest.length) return list;
  const more = element("button", { type: "button", text: `Show ${rest.length.toLocaleString("en")} more` });
  more.addEventListener("click", () => {
    rest[0].tabIndex = -1;
    list.append(...rest);
    rest[0].focus();
    more.remove();
  });
  return element("div", {}, list, more);
}

/** A text whose spans {start, end, make} (characters as Python counts them, code points) are made elements. */
function highlighted(text, spans) {
  const characters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const { start, end, make } of [...spans].sort((one, other) => one.start - other.start)) {
    if (start < at || end > characters.length || start >= end) continue;
    parts.push(characters.slice(at, start).join(""), make(characters.slice(start, end).join("")));
    at = end;
  }
  return element("p", { class: "text", dir: "auto" }, ...parts, characters.slice(at).join(""));
}
