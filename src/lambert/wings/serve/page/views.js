// What can be asked of a model: the fields of each view, examples, and the request.

const LINES = "One per line.";
const EXAMPLES = {
  squad: [
    {
      question: "Who wrote the novel Frankenstein?",
      context: "Frankenstein is a novel by Mary Shelley. She began to write it in 1816 at Lake Geneva, when she was eighteen years old, and it was published in London on 1 January 1818.",
    },
    {
      question: "Who designed the Eiffel Tower?",
      context: "The Eiffel Tower was designed by the engineers Maurice Koechlin and Émile Nouguier, who worked for the company of Gustave Eiffel. It was built in Paris from 1887 to 1889 for the World's Fair, and was the tallest structure in the world for 41 years.",
    },
    {
      question: "Where does the Danube end?",
      context: "The Danube rises in the Black Forest of Germany. It flows through ten countries, more than any other river in the world, and ends in the Black Sea.",
    },
    {
      question: "When did Amundsen reach the South Pole?",
      context: "Roald Amundsen reached the South Pole on 14 December 1911. The expedition of Robert Falcon Scott arrived 34 days later, on 17 January 1912.",
    },
  ],
  tag: [
    { text: "Marie Curie was born in Warsaw and worked in Paris with her husband Pierre." },
    { text: "Tim Cook said in Cupertino that Apple will open an office in Munich next year." },
    { text: "In 1831 Charles Darwin left Plymouth on board the Beagle and sailed to Brazil." },
  ],
  mask: [
    { text: "The capital of France is [MASK]." },
    { text: "She opened the [MASK] and looked at the [MASK]." },
  ],
  choice: [
    { texts: ["The glass fell from the table, and"], lists: ["it broke on the floor.\nit began to sing.\nthe table flew away."] },
    { texts: ["She had forgotten her umbrella, so"], lists: ["she came home wet.\nthe sun was square.\nthe umbrella read a book."] },
  ],
  pair: [
    { texts: ["A man is playing the guitar in the street.", "Someone is making music."] },
    { texts: ["How do I learn to swim?", "What is the best way of learning to swim?"] },
  ],
  text: [
    { texts: ["The train to the coast leaves at nine."] },
    { texts: ["The parcel arrived three weeks late, and the box was damaged."] },
    { texts: ["I am so nervous about the exam tomorrow that I cannot sleep."] },
  ],
  similarity: [
    {
      source: "How do I reset my password?",
      sentences: "I have forgotten my password.\nWhere can I change the login details?\nThe weather is fine today.\nDo you deliver on Sundays?",
    },
    {
      source: "A cat sleeps on the sofa.",
      sentences: "A kitten is napping on the couch.\nA dog runs through the park.\nInterest rates have risen again.",
    },
  ],
  rerank: [
    {
      query: "Who wrote Emma?",
      documents: "Emma is a novel by Jane Austen, published in 1815.\nRain is expected in the north.\nCharlotte Brontë wrote Jane Eyre.\nThe rules of chess were settled in the 19th century.",
    },
    {
      query: "How do bees make honey?",
      documents: "Bees collect nectar and dry it in the combs of the hive.\nThe hive must be painted before the winter.\nHoney is sweet.",
    },
  ],
};

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const titled = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
const field = (key, label, rows = 3, hint = "") => ({ key, label, rows, hint, list: false });
const listField = (key, label, hint = LINES) => ({ key, label, rows: 5, hint, list: true });

/** The examples of a view whose texts have the names that the model's data gave them. */
function named(fields, examples) {
  const texts = fields.filter((one) => !one.list);
  const lists = fields.filter((one) => one.list);
  return examples.map((example) => Object.fromEntries([
    ...texts.map((one, place) => [one.key, example.texts[Math.min(place, example.texts.length - 1)]]),
    ...lists.map((one, place) => [one.key, (example.lists || ["one\nanother"])[place] || "one\nanother"]),
  ]));
}

/** The view of the model's own task, null if it has none but vectors. */
function taskView(card) {
  const { task } = card;
  if (!task || task === "embed") return null;
  const view = { id: "task", path: "predict", run: "Run", about: "" };
  if (task === "squad") {
    const fields = [field("question", "Question", 1), field("context", "Context", 7, "The text that has the answer.")];
    return { ...view, title: "Question answering", run: "Find the answer", fields, examples: EXAMPLES.squad, top: 5 };
  }
  if (task === "tag") {
    return { ...view, title: "Tagging", run: "Tag words", fields: [field("text", "Text", 5)], examples: EXAMPLES.tag, plain: true };
  }
  if (task === "mask") {
    const hint = "[MASK] stands for the word to fill in; several are possible.";
    const fields = [{ ...field("text", "Text", 4, hint), mask: true }];
    return { ...view, title: "Fill in words", run: "Fill in", fields, examples: EXAMPLES.mask, plain: true };
  }
  const titles = { classify: "Classification", multilabel: "Labels", regress: "Value", choice: "Multiple choice" };
  const title = titles[task] || shortened(titled(task), 30);
  const own = card.example && typeof card.example === "object" ? card.example : {};
  const names = (card.inputs || []).length ? card.inputs : ["text"];
  const fields = names.map((name) => Array.isArray(own[name])
    ? listField(name, titled(name), task === "choice" ? "One choice per line." : LINES)
    : field(name, titled(name), names.length > 1 ? 3 : 5));
  const more = (card.optional_inputs || []).map((name) => (
    { ...field(name, titled(name), 2, "The second text of a pair, if the model is one of pairs."), optional: true }));
  const given = fields.every((one) => typeof own[one.key] === "string" || Array.isArray(own[one.key]));
  const foreign = Object.fromEntries(fields.map((one) => [one.key, one.list ? (own[one.key] || []).join("\n") : own[one.key]]));
  const examples = !titles[task] && given ? [foreign] : named(fields, EXAMPLES[task === "choice" ? "choice" : fields.length > 1 ? "pair" : "text"]);
  const run = { classify: "Classify", multilabel: "Find labels", regress: "Compute" }[task] || "Run";
  const whole = examples.map((one) => ({ ...one, ...Object.fromEntries(more.map(({ key }) => [key, ""])) }));
  return { ...view, title, run, fields: [...fields, ...more], examples: whole, plain: typeof card.example === "string" };
}

/** Everything that can be asked of a model. */
function viewsOf(card) {
  const task = taskView(card);
  const keys = card.task === "regress" ? [...(card.inputs || []), ...(card.optional_inputs || [])] : card.inputs || [];
  const pairs = keys.length === 2 && (card.task === "regress" || (card.task === "classify" && (card.labels || []).length === 2));
  const untrained = card.task === "embed" ? "" : " This model was not trained for this, so the results may be poor.";
  const vectors = {
    id: "similarity", path: "similarity", title: "Similarity", run: "Compare", examples: EXAMPLES.similarity,
    about: `How near texts are in meaning: the cosine of their vectors.${untrained}`,
    fields: [field("source", "Text", 2), listField("sentences", "Texts to compare with")],
  };
  const relevance = {
    id: "rerank", path: "rerank", title: "Relevance", run: "Sort", examples: EXAMPLES.rerank,
    about: pairs
      ? "Texts in the order of the model's score of each pair."
      : `Texts in the order of their relevance to a question: the cosine of their vectors.${untrained}`,
    fields: [field("query", "Question", 1), listField("documents", "Texts to sort")],
  };
  return [task, vectors, relevance].filter(Boolean);
}

/** The body of the request, from the texts of the fields by key. */
function bodyOf(card, view, texts) {
  const written = view.fields.filter(({ key, optional }) => !optional || texts[key].trim());
  const values = Object.fromEntries(written.map(({ key, list }) => [key, list ? lines(texts[key]) : texts[key]]));
  const model = card.name;
  if (view.id !== "task") return { model, ...values };
  const inputs = view.plain && written.length === 1 ? values[written[0].key] : values;
  return view.top ? { model, inputs, top: view.top } : { model, inputs };
}

/** What is missing before the request can be sent: {key, message}, or null. */
function missing(view, texts) {
  for (const { key, label, list, mask, optional } of view.fields) {
    if (!texts[key].trim() && !optional) return { key, message: `${label}: write a text first.` };
    if (list && key !== "sentences" && key !== "documents" && lines(texts[key]).length < 2) {
      return { key, message: `${label}: write at least two, one per line.` };
    }
    if (mask && !/\[MASK\]|<mask>/.test(texts[key])) return { key, message: "Write [MASK] where a word is to be filled in." };
  }
  return null;
}
