// Answers as elements. A renderer returns {nodes, said}: what is shown, and one sentence for screen readers.

const share = (chance) => ({ share: chance, value: percent(chance) });

/** The answer in its context, and further candidates, each of which can be shown in the context. */
function showAnswer(output, { inputs }) {
  const { context } = inputs;
  const place = element("div");
  const show = ({ start, end }) => place.replaceChildren(
    highlighted(context, end > start ? [{ start, end, make: (text) => element("mark", { text }) }] : []));
  const found = Boolean(output.answer);
  const candidates = Array.isArray(output.candidates) ? output.candidates.filter((one) => one && typeof one.text === "string") : [];
  const head = element("p", { class: "headline" },
    element("strong", { dir: "auto", text: found ? output.answer : "No answer" }),
    element("span", { class: "value", text: `probability ${percent(output.probability)}` }));
  show(found ? output : { start: 0, end: 0 });
  const nodes = [head];
  if (!found) nodes.push(element("p", { class: "muted", text: "The model finds no answer in this context." }));
  nodes.push(place);
  if (candidates.length > 1) {
    const buttons = candidates.map((one) => {
      const button = element("button", { type: "button", class: "candidate", "aria-pressed": "false" },
        element("span", { dir: "auto", text: one.text || "No answer" }), element("span", { class: "value", text: percent(one.probability) }));
      button.addEventListener("click", () => {
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        show(one.text ? one : { start: 0, end: 0 });
      });
      return button;
    });
    const first = candidates.findIndex((one) => one.text === output.answer && one.start === output.start);
    if (first >= 0) buttons[first].setAttribute("aria-pressed", "true");
    nodes.push(element("h3", { text: "Candidates" }), element("ul", { class: "candidates" }, ...buttons.map((button) => element("li", {}, button))));
  }
  return { nodes, said: found ? `Answer: ${output.answer}, probability ${percent(output.probability)}.` : "The model finds no answer." };
}

/** Bars of all labels, the most probable first. */
function showLabels(output) {
  const chosen = new Set("labels" in output ? output.labels : [output.label]);
  const tick = "labels" in output ? "✓ chosen" : "✓";
  const rows = Object.entries(output.probabilities).sort((one, other) => other[1] - one[1]);
  const names = rows.map(([label]) => label).filter((label) => chosen.has(label));
  const shown = names.length ? names.join(", ") : "No label";
  const nodes = [element("p", { class: "headline" },
    element("strong", { dir: "auto", text: shown }),
    "label" in output ? element("span", { class: "value", text: percent(output.probability) }) : null)];
  if (!names.length) nodes.push(element("p", { class: "muted", text: "No label reaches its threshold." }));
  nodes.push(bars(rows.map(([label, chance]) => ({ label, ...share(chance), marked: chosen.has(label) ? tick : "" }))));
  return { nodes, said: "label" in output ? `${shown}, ${percent(output.probability)}.` : `${shown}.` };
}

function showValue(output) {
  const value = number(output.value);
  return { nodes: [element("p", { class: "headline number" }, element("strong", { text: value }))], said: `The value is ${value}.` };
}

/** Coloured spans with their label, and a legend. Tags that mark no spans are shown word by word. */
function showTags(output, { inputs }, card) {
  const spans = output.spans ? output.spans : (output.offsets || []).flatMap(([start, end], place) => {
    const label = output.tags[place];
    return label === null || label === "O" ? [] : [{ start, end, label }];
  });
  const known = (card.labels || []).filter((label) => label !== "O");
  const kinds = [...new Set([...known.map((label) => (output.spans ? label.replace(/^[BILUES]-/, "") : label)), ...spans.map((span) => span.label)])];
  const colour = (label) => `tag colour-${kinds.indexOf(label) % 8}`;
  const tagged = spans.map(({ start, end, label }) => ({
    start, end, make: (text) => element("mark", { class: colour(label) }, text, "\u00a0", element("span", { class: "label", text: label })),
  }));
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) || 0) + 1);
  const nodes = [highlighted(inputs, tagged)];
  if (spans.length) {
    nodes.push(element("h3", { text: "Legend" }), element("ul", { class: "legend" }, ...kinds.filter((label) => counts.has(label)).map((label) =>
      element("li", {}, element("span", { class: `${colour(label)} swatch`, text: label }), ` ${counts.get(label)}`))));
  } else {
    nodes.push(element("p", { class: "muted", text: "The model tags nothing in this text." }));
  }
  const said = spans.length ? `${spans.length} found: ${[...counts].map(([label, count]) => `${count} ${label}`).join(", ")}.` : "Nothing found.";
  return { nodes, said };
}

/** The text with its blanks filled in, and the candidates of each, which can be put into it. */
function showMasks(output, { inputs }, card, use) {
  const { masks } = output;
  const own = inputs.split("[MASK]").length - 1 >= masks.length ? "[MASK]" : /\[MASK\]|<mask>/;
  const parts = inputs.split(own);
  const chosen = masks.map(([first]) => first.token);
  const joined = () => parts.reduce((text, part, place) => {
    const token = place <= chosen.length ? chosen[place - 1] : "[MASK]";
    return token.startsWith("##") ? text.trimEnd() + token.slice(2) + part : text + token + part;
  });
  const place = element("div");
  const show = () => {
    const shown = [parts[0]];
    parts.slice(1).forEach((part, index) => {
      shown.push(element("mark", { text: index < chosen.length ? chosen[index] : "[MASK]" }), part);
    });
    place.replaceChildren(element("p", { class: "text", dir: "auto" }, ...shown));
  };
  show();
  const nodes = [place];
  masks.forEach((candidates, index) => {
    const buttons = candidates.map(({ token, probability }, rank) => {
      const button = element("button", { type: "button", class: "candidate", "aria-pressed": String(rank === 0) },
        element("span", { dir: "auto", text: token }), element("span", { class: "value", text: percent(probability) }));
      button.addEventListener("click", () => {
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        chosen[index] = token;
        show();
      });
      return button;
    });
    nodes.push(element("h3", { text: masks.length > 1 ? `Candidates for blank ${index + 1}` : "Candidates" }),
      element("ul", { class: "candidates" }, ...buttons.map((button) => element("li", {}, button))));
  });
  nodes.push(element("p", { class: "after" }, element("button", { type: "button", text: "Put into the input", on: { click: () => use("text", joined()) } })));
  return { nodes, said: `Most probable: ${chosen.join(", ")}.` };
}

function showChoice(output, { inputs }, card) {
  const own = (card.inputs || []).map((name) => inputs[name]);
  const listed = own.find(Array.isArray) || own.slice(-output.probabilities.length);
  const rows = output.probabilities.map((chance, place) => ({
    label: String(listed[place] ?? `Choice ${place + 1}`), ...share(chance), marked: place === output.choice ? "✓" : "",
  }));
  const best = rows[output.choice].label;
  const nodes = [element("p", { class: "headline" }, element("strong", { dir: "auto", text: best }),
    element("span", { class: "value", text: percent(output.probability) })), bars(rows)];
  return { nodes, said: `${best}, ${percent(output.probability)}.` };
}

function showVector(output) {
  const shown = output.vector.slice(0, 8).map(number).join(", ");
  return { nodes: [element("p", { class: "text", text: `${shown}, … (${output.vector.length} numbers)` })], said: "The vector is computed." };
}

/** Renderers by a key that only their outputs have, so that a task from outside is shown if its outputs are alike. */
const RENDERERS = [
  ["answer", showAnswer], ["masks", showMasks], ["tags", showTags], ["choice", showChoice], ["probabilities", showLabels],
  ["value", showValue], ["vector", showVector],
];

function showScores(texts, scores) {
  const top = Math.max(1, ...scores.map((score) => Math.abs(score)));
  const order = [...scores.keys()].sort((one, other) => scores[other] - scores[one]);
  const rows = order.map((place) => ({ label: texts[place], value: number(scores[place]), share: scores[place] / top, marked: "" }));
  return { nodes: [bars(rows, 50)], said: `First: ${shortened(rows[0].label)}, ${rows[0].value}.` };
}

/** The answer of the service to a body, as elements. `use(key, text)` writes into a field. */
function rendered(view, body, answer, card, use) {
  if (view.id === "similarity") return showScores(body.sentences, answer.similarities);
  if (view.id === "rerank") {
    return showScores(answer.results.map(({ index }) => body.documents[index]), answer.results.map(({ score }) => score));
  }
  const output = answer.outputs[0];
  const found = RENDERERS.find(([key]) => key in output);
  if (found) return found[1](output, body, card, use);
  return { nodes: [element("pre", { tabindex: "0", role: "region", "aria-label": "Output", text: JSON.stringify(output, null, 2) })], said: "The answer is there." };
}
