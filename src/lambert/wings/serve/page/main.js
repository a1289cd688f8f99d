// The page: models, views, and the request that is under way.

const state = { cards: [], card: null, view: null, texts: new Map(), examples: new Map(), running: null, sent: "" };

const place = () => `${state.card.name}/${state.view.id}`;
const current = () => state.texts.get(place());
const say = (text) => { byId("say").textContent = text; };

/** Asks for the models, and shows the first one or that of the address. */
async function load() {
  byId("failed").hidden = true;
  try {
    state.cards = await ask("models");
  } catch (error) {
    if (error.status === 401) askForKey(Boolean(key));
    else {
      byId("failed-text").replaceChildren(...failure(error));
      byId("failed").hidden = false;
    }
    return false;
  }
  byId("model").replaceChildren(...state.cards.map(({ name }) => element("option", { value: name, text: name })));
  byId("model").disabled = state.cards.length < 2;
  byId("chosen").hidden = false;
  let wanted = "";
  try {
    wanted = decodeURIComponent(location.hash.slice(1));
  } catch { /* an address that somebody cut */ }
  chooseModel(state.card?.name || wanted);
  return true;
}

function askForKey(refused) {
  byId("show-key").hidden = false;
  byId("key-form").hidden = false;
  byId("key-wrong").textContent = refused ? "The service refuses this key." : "";
  byId("key").value = "";
  byId("key").focus();
}

function chooseModel(name) {
  stop();
  state.card = state.cards.find((card) => card.name === name) || state.cards[0];
  const { card } = state;
  byId("model").value = card.name;
  const facts = {
    Task: card.task || "vectors", Family: card.family, Width: card.dimensions, Precision: card.precision,
    "Max tokens": card.max_length, Version: card.version,
  };
  byId("facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value).map(([term, value]) =>
    element("div", { class: ["Task", "Precision"].includes(term) ? null : "minor" }, element("dt", { text: term }), element("dd", { text: value }))));
  const views = viewsOf(card);
  byId("tabs").replaceChildren(...views.map((view, number) => element("button", {
    type: "button", role: "tab", id: `tab-${number}`, "aria-controls": "panel", text: view.title,
    on: { click: () => chooseView(view, number), keydown: moveTab },
  })));
  if (state.cards.length > 1) history.replaceState(null, "", `#${encodeURIComponent(card.name)}`);
  chooseView(views[0], 0);
}

function moveTab(event) {
  const tabs = [...byId("tabs").children];
  const at = tabs.indexOf(event.currentTarget);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = tabs[(to + tabs.length) % tabs.length];
  tab.focus();
  tab.click();
}

function chooseView(view, number) {
  stop();
  state.view = view;
  [...byId("tabs").children].forEach((tab, other) => {
    tab.setAttribute("aria-selected", String(other === number));
    tab.tabIndex = other === number ? 0 : -1;
  });
  byId("panel").setAttribute("aria-labelledby", `tab-${number}`);
  byId("about").textContent = view.about;
  byId("about").hidden = !view.about;
  byId("run").textContent = view.run;
  byId("example").hidden = view.examples.length < 2;
  if (!current()) state.texts.set(place(), { ...view.examples[0] });
  byId("fields").replaceChildren(...view.fields.map(fieldElement));
  clear();
}

function fieldElement({ key: name, label, rows, hint, mask }, number) {
  const id = `field-${number}`;
  const input = rows > 1 ? element("textarea", { id, rows }) : element("input", { id, type: "text", autocomplete: "off" });
  input.dir = "auto";
  input.value = current()[name];
  input.dataset.key = name;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  input.addEventListener("input", () => {
    current()[name] = input.value;
    input.removeAttribute("aria-invalid");
    changed();
  });
  const parts = [element("label", { for: id, text: label }), input];
  if (hint) parts.push(element("p", { id: `${id}-hint`, class: "muted hint", text: hint }));
  if (mask) {
    parts.push(element("button", { type: "button", class: "plain", text: "Insert [MASK]", on: { click: () => {
      input.setRangeText("[MASK]", input.selectionStart, input.selectionEnd, "end");
      input.dispatchEvent(new Event("input"));
      input.focus();
    } } }));
  }
  return element("div", { class: "field" }, ...parts);
}

/** Writes into a field as a user does. */
function use(name, text) {
  const input = [...byId("fields").querySelectorAll("[data-key]")].find((one) => one.dataset.key === name);
  input.value = text;
  input.dispatchEvent(new Event("input"));
  input.focus();
}

/** Marks the field that an error names, which may be `inputs` or a part of it. */
function blame(name) {
  const inputs = [...byId("fields").querySelectorAll("[data-key]")];
  const first = name.split(/[.[]/)[0];
  const found = inputs.find((one) => one.dataset.key === first) || (inputs.length === 1 && first === "inputs" ? inputs[0] : null);
  found?.setAttribute("aria-invalid", "true");
  return found;
}

const body = () => bodyOf(state.card, state.view, current());

function changed() {
  byId("curl").textContent = curl(state.view.path, body());
  byId("copied").textContent = "";
  byId("stale").hidden = !state.sent || state.sent === JSON.stringify(body());
}

function clear() {
  state.sent = "";
  byId("output").replaceChildren(element("p", { class: "muted empty", text: "The answer appears here." }));
  byId("timing").textContent = "";
  byId("raw").hidden = true;
  say("");
  changed();
}

function show(nodes, said) {
  byId("output").replaceChildren(...nodes);
  say(said);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("result").scrollIntoView({ block: "nearest", behavior: still ? "instant" : "smooth" });
}

function busy(on) {
  byId("cancel").hidden = !on;
  byId("run").setAttribute("aria-disabled", String(on));
  byId("result").setAttribute("aria-busy", String(on));
  if (!on && document.activeElement === document.body) byId("run").focus();
}

function stop() {
  state.running?.abort();
}

function cancel() {
  if (!state.running) return;
  if (document.activeElement === byId("cancel")) byId("run").focus();
  stop();
}

async function run() {
  if (state.running) return;
  const { card, view } = state;
  const lacking = missing(view, current());
  if (lacking) {
    clear();
    const input = blame(lacking.key);
    show([element("p", { class: "headline wrong" }, element("strong", { text: lacking.message }))], lacking.message);
    input?.focus();
    return;
  }
  const running = new AbortController();
  const sent = body();
  state.running = running;
  clear();
  byId("output").replaceChildren(element("p", { class: "muted busy", text: "Computing…" }));
  say("Computing…");
  busy(true);
  const begin = performance.now();
  try {
    const answer = await ask(view.path, sent, running.signal);
    const time = performance.now() - begin;
    const { nodes, said } = rendered(view, sent, answer, card, use);
    show(nodes, said);
    byId("timing").textContent = `${milliseconds(time)} · ${answer.model} · version ${answer.version}`;
    byId("json").textContent = shortJson(answer);
    byId("raw").hidden = false;
    state.sent = JSON.stringify(sent);
    changed();
  } catch (error) {
    if (running.signal.aborted) {
      if (state.running === running && state.view === view) show([element("p", { class: "muted empty", text: "Cancelled." })], "Cancelled.");
    } else {
      show(failure(error), `${error.title || "The page cannot show the answer"}. ${error.message}`);
      if (error.field) blame(error.field);
      if (error.status === 401) askForKey(Boolean(key));
    }
  } finally {
    if (state.running === running) {
      state.running = null;
      busy(false);
    }
  }
}

function shortJson(answer) {
  const text = JSON.stringify(answer, null, 2);
  return text.length > 20000 ? `${text.slice(0, 20000)}\n… (${text.length.toLocaleString("en")} characters)` : text;
}

async function copy() {
  let done = true;
  try {
    await navigator.clipboard.writeText(byId("curl").textContent);
  } catch {
    getSelection().selectAllChildren(byId("curl"));
    done = document.execCommand("copy");
  }
  byId("copied").textContent = done ? "Copied." : "Select the command and copy it.";
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
byId("cancel").addEventListener("click", cancel);
byId("copy").addEventListener("click", copy);
byId("retry").addEventListener("click", load);
byId("model").addEventListener("change", (event) => chooseModel(event.target.value));
byId("show-key").addEventListener("click", () => askForKey(false));
byId("example").addEventListener("click", () => {
  stop();
  const next = ((state.examples.get(place()) || 0) + 1) % state.view.examples.length;
  state.examples.set(place(), next);
  state.texts.set(place(), { ...state.view.examples[next] });
  for (const input of byId("fields").querySelectorAll("[data-key]")) {
    input.value = current()[input.dataset.key];
    input.removeAttribute("aria-invalid");
  }
  clear();
});
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  if (!key || /[^\x21-\x7e]/.test(key)) {
    byId("key-wrong").textContent = "A key has letters, digits and symbols, without spaces.";
    return;
  }
  byId("key-form").hidden = true;
  if (await load()) byId("run").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") cancel();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && byId("form").contains(event.target)) {
    event.preventDefault();
    run();
  }
});
load();
