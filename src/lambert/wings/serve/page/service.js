// Requests, and what is said when they fail.

const TITLES = {
  400: "The service does not understand the request",
  401: "The service asks for an API key",
  403: "The service refuses the request",
  404: "The service does not have this",
  408: "The request took too long to arrive",
  413: "The input is too large",
  415: "The service does not understand the request",
  422: "The model cannot read this input",
  429: "The service has too much work",
  500: "The service failed",
  502: "The service cannot be reached",
  503: "The service could not answer",
  504: "The service did not answer in time",
};

let key = "";

/** An answer that is no result: `status` 0 if there was none. */
class Failed extends Error {
  constructor(status, title, message, field = "", wait = "") {
    super(message);
    Object.assign(this, { status, title, field, wait });
  }
}

const addressOf = (path) => new URL(path, location.href.replace(/[?#].*/s, "")).href;

/** The content of the answer. Raises Failed; AbortError if the signal ends it. */
async function ask(path, body, signal) {
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  let answer, text;
  try {
    answer = await fetch(addressOf(path), { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal, cache: "no-store" });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "The service does not answer", "It may have ended, or the network is down. Start it again with `lambert serve`, then try again.");
  }
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    const shown = shortened(text, 200);
    throw new Failed(answer.status, TITLES[answer.status] || "The answer cannot be read",
      `The answer (status ${answer.status}) is not JSON${shown ? `: ${shown}` : "."}`, "", answer.headers.get("Retry-After") || "");
  }
  if (answer.ok) return content;
  const said = content && typeof content.error === "string" ? content.error : shortened(text, 200);
  throw new Failed(answer.status, TITLES[answer.status] || `The service answers with status ${answer.status}`, said,
    content && typeof content.field === "string" ? content.field : "", answer.headers.get("Retry-After") || "");
}

/** Elements that say what failed. */
function failure(error) {
  if (!(error instanceof Failed)) {
    return [element("p", { class: "headline" }, element("strong", { text: "The page cannot show the answer" })), element("p", { text: String(error.message || error) })];
  }
  return [
    element("p", { class: "headline wrong" }, element("strong", { text: error.title }), error.status ? element("span", { class: "value", text: String(error.status) }) : null),
    element("p", { class: "reason", dir: "auto", text: error.message }),
    error.field ? element("p", { class: "muted" }, "Field: ", element("code", { text: error.field })) : null,
    /^\d+$/.test(error.wait) ? element("p", { text: `Try again in ${error.wait} s.` }) : null,
  ].filter(Boolean);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(path, body) {
  const authorization = key ? ' \\\n  -H "Authorization: Bearer $LAMBERT_API_KEY"' : "";
  return `curl ${quoted(addressOf(path))} \\\n  -H 'Content-Type: application/json'${authorization} \\\n  -d ${quoted(JSON.stringify(body))}`;
}
