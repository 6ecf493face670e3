// The page at / of a server: forms for what its models can do, and what it does at the moment.

const KEY = "packhorse-api-key"; // of sessionStorage
const POLL_MS = 2000;
const POINTS = 60; // of a curve
const MOST_TEXTS = 8;
const MOST_WORDS = 40;
const PICTURE_SIDE = 160; // pixels of a thumbnail
const RECORDED_HZ = 16000; // what models of speech hear

const find = (selector, inside = document) => inside.querySelector(selector);
const findAll = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const forms = findAll("main form[data-method]");
let models = [];

// --- elements

function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- requests

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The errors of all protocols: {error, error_type}, {error: {message}} and {message}.
function messageOf(content) {
  return content?.error?.message ?? content?.error ?? content?.message;
}

async function ask(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  const options = { method: body ? "POST" : "GET", headers, signal };
  if (body instanceof FormData) {
    options.body = body;
  } else if (body) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const content = await response.json().catch(() => null);
  const again = response.headers.get("retry-after");
  const when = again ? ` (try again in ${again} s)` : "";
  const message = messageOf(content) ?? `the server answered ${response.status}`;
  throw new ServerError(response.status, `${message}${when}`);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The command of a terminal that sends the same. The key is a variable there: commands are shown
// to others.
function curlOf(path, body) {
  const address = quoted(new URL(path, document.baseURI).href);
  const isForm = body instanceof FormData;
  const parts = [`curl ${body.stream ? "-N " : ""}${address}`];
  if (!isForm) parts.push("-H 'Content-Type: application/json'");
  if (sessionStorage.getItem(KEY)) parts.push('-H "Authorization: Bearer $PACKHORSE_API_KEY"');
  if (isForm) {
    for (const [field, value] of body) {
      parts.push(`-F ${quoted(`${field}=${value instanceof File ? `@${value.name}` : value}`)}`);
    }
  } else {
    parts.push(`-d ${quoted(JSON.stringify(body, shortened))}`);
  }
  return parts.join(" \\\n  ");
}

// Pictures would be thousands of lines.
function shortened(_key, value) {
  const long = typeof value === "string" && value.startsWith("data:") && value.length > 80;
  return long ? `${value.slice(0, 60)}...` : value;
}

async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    // Browsers have no clipboard for pages that come over plain HTTP from elsewhere.
    getSelection().selectAllChildren(shown);
    return "Selected: press Ctrl+C";
  }
}

function showRequest(form, path, body) {
  const text = curlOf(path, body);
  const shown = make("pre", {}, text);
  const button = make("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = await copy(text, shown);
  });
  const box = find(".requests", form) ?? make("details", { class: "requests" });
  if (!box.isConnected) form.append(box);
  if (!box.children.length) box.append(make("summary", {}, "As curl"));
  box.append(shown, button);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(200, messageOf(event));
      yield event;
    }
  }
}

// --- models and tabs

const chosen = () => models[find("#model").selectedIndex];
const name = () => chosen().name;

// A reranker's one label says the same as its score. Models of text to text, which all translate,
// do not go on with what they are given.
function suits(form, model) {
  const { method, makes } = form.dataset;
  if (makes && (makes === "other") !== model.methods.includes("translate")) return false;
  return model.methods.includes(method) && !(method === "classify" && model.methods.includes("score"));
}

async function readModels() {
  const trouble = find("#trouble");
  const select = find("#model");
  const before = select.value;
  trouble.textContent = "";
  find("#key-form").hidden = true;
  try {
    models = await (await ask("models")).json();
  } catch (error) {
    models = [];
    if (error.status === 401) askForKey();
    else trouble.textContent = error.message;
  }
  find("#change-key").hidden = models.length === 0 || !sessionStorage.getItem(KEY);
  select.replaceChildren(...models.map((one) => make("option", {}, one.name)));
  if (models.some((one) => one.name === before)) select.value = before;
  find("#model-label").hidden = models.length === 0;
  showModel();
}

// Shows the form for the key, with an error where a key that is kept was refused.
function askForKey() {
  const refused = sessionStorage.getItem(KEY) !== null;
  find("#key-form .error").textContent = refused ? "The server does not take this key." : "";
  showKeyForm();
}

function showKeyForm() {
  find("#key-form").hidden = false;
  find("#key").select();
}

function showModel() {
  const model = chosen();
  const about = find("#about");
  const tabs = find("#tabs");
  const selected = find("[aria-selected=true]", tabs)?.dataset.form;
  const able = model ? forms.filter((form) => suits(form, model)) : [];
  tabs.replaceChildren(...able.map(tabOf));
  for (const form of forms) form.hidden = true;
  if (!model) {
    const explained = find("#trouble").textContent || !find("#key-form").hidden;
    about.textContent = explained ? "" : "No model is loaded.";
    return;
  }
  const megabytes = Math.round(model.memory_bytes / 1e6);
  const devices = [...new Set(model.devices)].map(deviceOf).join(", ");
  const takes = [];
  if (model.methods.includes("embed_images")) takes.push("pictures");
  if (model.methods.includes("transcribe")) takes.push("speech");
  if (!takes.length || model.methods.includes("embed")) takes.push(`texts of up to ${model.max_input_length} tokens`);
  about.textContent = `${weightsOf(model)}, ${devices}, ${megabytes} MB, ${takes.join(", ")}`;
  if (able.length === 0) {
    about.textContent += `. There is no form for what it can do: ${model.methods.join(", ")}`;
    return;
  }
  if (model.languages) offerLanguages(model.languages);
  showForm((able.find((form) => form.id === selected) ?? able[0]).id);
}

// "cpu", "cuda", "cuda:1"
function deviceOf(device) {
  const [kind, number] = device.split(":");
  return kind === "cpu" ? "CPU" : `GPU ${number ?? ""}`.trim();
}

function weightsOf(model) {
  if (model.dtype !== "stored") return model.dtype;
  const least = Math.min(...model.stored_bits);
  const most = Math.max(...model.stored_bits);
  return `${least === most ? most : `${least}- to ${most}`}-bit weights as stored in the file`;
}

function tabOf(form) {
  const tab = make("button", { type: "button", role: "tab", id: `tab-${form.id}` }, form.dataset.title);
  tab.dataset.form = form.id;
  tab.setAttribute("aria-controls", form.id);
  tab.addEventListener("click", () => showForm(form.id));
  form.setAttribute("role", "tabpanel");
  form.setAttribute("aria-labelledby", tab.id);
  return tab;
}

function showForm(id) {
  for (const form of forms) form.hidden = form.id !== id;
  for (const tab of findAll("#tabs [role=tab]")) {
    const selected = tab.dataset.form === id;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
  }
}

find("#tabs").addEventListener("keydown", (event) => {
  const tabs = findAll("#tabs [role=tab]");
  const now = tabs.indexOf(document.activeElement);
  const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1 }[event.key];
  if (next === undefined || now < 0) return;
  event.preventDefault();
  const tab = tabs.at(next % tabs.length);
  showForm(tab.dataset.form);
  tab.focus();
});

find("#model").addEventListener("change", showModel);
find("#key").value = sessionStorage.getItem(KEY) ?? "";
find("#change-key").addEventListener("click", showKeyForm);
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, find("#key").value.trim());
  readModels();
});

// --- forms

// Runs `work(form, send)` when the form is sent; an error of it is shown in the form. `send` is
// `ask`, whose requests the form shows.
function onSubmit(id, work) {
  const form = find(`#${id}`);
  const error = find(".error", form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const send = find("button:not([type])", form);
    if (send.disabled) return;
    send.disabled = true;
    error.textContent = "";
    find(".requests", form)?.replaceChildren();
    const shown = (path, body, signal) => {
      showRequest(form, path, body);
      return ask(path, body, signal);
    };
    try {
      await work(form, shown);
    } catch (failure) {
      if (failure.name !== "AbortError") error.textContent = failure.message;
      if (failure.status === 401) askForKey();
    } finally {
      send.disabled = false;
    }
  });
  form.addEventListener("keydown", (event) => {
    const wanted = id === "chat" ? !event.shiftKey && !event.isComposing : event.ctrlKey || event.metaKey;
    const inside = id === "chat" ? event.target.name === "message" : event.target.matches("textarea");
    if (event.key !== "Enter" || !wanted || !inside) return;
    event.preventDefault();
    form.requestSubmit();
  });
}

// What a form had shown goes as soon as the request for something new fails.
function onResult(id, work) {
  onSubmit(id, async (form, send) => {
    const result = find(".result", form);
    const json = async (path, body) => (await send(path, body)).json();
    try {
      result.replaceChildren(...(await work(form.elements, json)));
    } catch (error) {
      result.replaceChildren();
      throw error;
    }
  });
}

// rows: [score, text] each, and how much of the longest bar it has
function bars(rows, kind = "ul") {
  const items = rows.map(([score, text, share]) => {
    const bar = make("span", { class: "bar" });
    bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    const what = make("span", { class: "what" }, bar, make("span", {}, text));
    return make("li", {}, make("span", { class: "score" }, score.toFixed(4)), what);
  });
  return make(kind, { class: "bars" }, ...items);
}

// Places count characters, not the units of JavaScript's strings.
function marked(text, spans) {
  const characters = [...text];
  const parts = [];
  let end = 0;
  for (const span of spans) {
    parts.push(characters.slice(end, span.start).join(""));
    const inner = characters.slice(span.start, span.end).join("");
    const title = `${span.label ?? "answer"}, ${span.score.toFixed(4)}`;
    const mark = make("mark", { class: `tag-${span.colour ?? 0}`, title }, inner);
    if (span.label) mark.append(make("small", {}, span.label));
    parts.push(mark);
    end = span.end;
  }
  parts.push(characters.slice(end).join(""));
  return make("p", { class: "marked" }, ...parts);
}

onResult("rerank", async (fields, json) => {
  const texts = fields.texts.value.split("\n").filter((line) => line.trim());
  const body = { model: name(), query: fields.query.value, texts, truncate: true };
  const ranks = await json("rerank", body);
  return [bars(ranks.map(({ index, score }) => [score, texts[index], score]), "ol")];
});

onResult("classify", async (fields, json) => {
  const pair = fields.pair.value.trim();
  const inputs = pair ? [fields.text.value, pair] : fields.text.value;
  const labels = await json("predict", { model: name(), inputs, truncate: true });
  return [bars(labels.map(({ label, score }) => [score, label, score]))];
});

onResult("tag", async (fields, json) => {
  const text = fields.text.value;
  const parameters = { aggregation_strategy: fields.strategy.value };
  const body = { model: name(), inputs: text, parameters, truncate: true };
  const entities = await json("token-classification", body);
  const kinds = [...new Set(entities.map((one) => one.entity_group))].sort();
  const spans = entities.map((one) => ({
    ...one, label: one.entity_group, colour: kinds.indexOf(one.entity_group) % 8,
  }));
  const note = entities.length ? `${entities.length} found` : "Nothing was found.";
  return [marked(text, spans), make("p", { class: "note" }, note)];
});

onResult("answer", async (fields, json) => {
  const inputs = { question: fields.question.value, context: fields.context.value };
  const found = await json("question-answering", { model: name(), inputs });
  const words = `${found.answer} (${found.score.toFixed(4)})`;
  return [marked(inputs.context, [found]), make("p", { class: "note" }, words)];
});

onResult("sparse", async (fields, json) => {
  const body = { model: name(), inputs: fields.text.value, truncate: true };
  const [entries] = await json("embed_sparse", body);
  const best = entries.sort((one, other) => other.value - one.value).slice(0, MOST_WORDS);
  if (best.length === 0) return [make("p", { class: "note" }, "No entry has a weight.")];
  const ids = best.map((one) => [one.index]);
  const words = await json("decode", { model: name(), ids, skip_special_tokens: false });
  const rows = best.map((one, i) => [one.value, words[i], one.value / best[0].value]);
  const note = `${best.length} of ${entries.length} entries`;
  return [bars(rows), make("p", { class: "note" }, note)];
});

// --- vectors

find("#embed .more").addEventListener("click", (event) => {
  const texts = find("#embed .texts");
  const area = make("textarea", { rows: 2, required: "" });
  texts.append(make("label", {}, `Text ${texts.children.length + 1} `, area));
  area.focus();
  event.target.disabled = texts.children.length >= MOST_TEXTS;
});

onResult("embed", async (_fields, json) => {
  const inputs = findAll("#embed textarea").map((area) => area.value);
  const vectors = await json("embed", { model: name(), inputs, truncate: true });
  const cosines = vectors.map((one) => vectors.map((other) => cosine(one, other)));
  const picture = vectors.length === 2 ? angleOf(cosines[0][1]) : tableOf(cosines);
  return [picture, ...vectors.map(stripOf)];
});

function cosine(one, other) {
  const product = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const length = Math.sqrt(product(one, one) * product(other, other));
  return length ? Math.min(1, Math.max(-1, product(one, other) / length)) : 0;
}

function angleOf(value) {
  const angle = Math.acos(value);
  const degrees = Math.round((angle * 180) / Math.PI);
  const at = (radius, turn) => [150 + radius * Math.cos(turn), 130 - radius * Math.sin(turn)];
  // Both are turned so that the angle opens upwards.
  const turns = [Math.PI / 2 + angle / 2, Math.PI / 2 - angle / 2];
  const arrows = turns.flatMap((turn, i) => {
    const [x, y] = at(100, turn);
    const [left, top] = at(114, turn);
    return [
      draw("line", { x1: 150, y1: 130, x2: x, y2: y }),
      draw("text", { x: left, y: top + 4, "text-anchor": i ? "start" : "end" }, `text ${i + 1}`),
    ];
  });
  const [begin, end] = turns.map((turn) => at(34, turn).join(" "));
  const label = `Cosine ${value.toFixed(4)}, an angle of ${degrees} degrees`;
  return draw(
    "svg",
    { class: "angle", viewBox: "0 0 300 190", role: "img", "aria-label": label },
    draw("path", { d: `M ${begin} A 34 34 0 0 1 ${end}` }),
    ...arrows,
    draw("text", { class: "value", x: 150, y: 162, "text-anchor": "middle" }, value.toFixed(4)),
    draw("text", { x: 150, y: 182, "text-anchor": "middle" }, `cosine, ${degrees}°`),
  );
}

// From orange (-1) over white (0) to blue (1).
function colourOf(value) {
  const [red, green, blue] = value < 0 ? [230, 140, 60] : [80, 150, 220];
  const share = Math.min(1, Math.abs(value));
  return [red, green, blue].map((part) => Math.round(255 + (part - 255) * share));
}

function tableOf(cosines, names = cosines.map((_, i) => `text ${i + 1}`)) {
  const head = names.map((one) => make("th", { scope: "col" }, one));
  const rows = cosines.map((row, i) => {
    const cells = row.map((value) => {
      const cell = make("td", {}, value.toFixed(3));
      cell.style.backgroundColor = `rgb(${colourOf(value)})`;
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, names[i]), ...cells);
  });
  return make("table", { "aria-label": "Cosines" }, make("tr", {}, make("td"), ...head), ...rows);
}

function stripOf(vector, number) {
  const label = `The ${vector.length} values of the vector of text ${number + 1}`;
  const canvas = make("canvas", { width: vector.length, height: 1, role: "img", "aria-label": label });
  const largest = Math.max(...vector.map(Math.abs)) || 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(vector.length, 1);
  vector.forEach((value, i) => image.data.set([...colourOf(value / largest), 255], 4 * i));
  context.putImageData(image, 0, 0);
  return make("figure", {}, canvas, make("figcaption", {}, label));
}

// --- pictures

function dataUrlOf(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new ServerError(0, `${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

// The picture as the browser sees it; nothing where it cannot show the file.
async function thumbnailOf(file) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return make("figcaption", {}, file.name);
  const scale = Math.min(1, PICTURE_SIDE / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(1, Math.round(bitmap.width * scale));
  const height = Math.max(1, Math.round(bitmap.height * scale));
  const canvas = make("canvas", { width, height, role: "img", "aria-label": file.name });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
  return make("figure", { class: "picture" }, canvas, make("figcaption", {}, file.name));
}

onResult("name-picture", async (fields, json) => {
  const file = fields.picture.files[0];
  const candidate_labels = fields.labels.value.split("\n").map((line) => line.trim()).filter(Boolean);
  const parameters = { candidate_labels, hypothesis_template: fields.template.value };
  const body = { model: name(), inputs: await dataUrlOf(file), parameters };
  const labels = await json("zero-shot-image-classification", body);
  return [await thumbnailOf(file), bars(labels.map(({ label, score }) => [score, label, score]))];
});

onResult("classify-picture", async (fields, json) => {
  const file = fields.picture.files[0];
  const labels = await json("image-classification", { model: name(), inputs: await dataUrlOf(file) });
  return [await thumbnailOf(file), bars(labels.map(({ label, score }) => [score, label, score]))];
});

onResult("compare-pictures", async (fields, json) => {
  const files = [...fields.picture.files].slice(0, MOST_TEXTS);
  const urls = await Promise.all(files.map(dataUrlOf));
  const body = { model: name(), input: urls.map((image) => ({ image })) };
  const vectors = (await json("v1/embeddings", body)).data.map((one) => one.embedding);
  const cosines = vectors.map((one) => vectors.map((other) => cosine(one, other)));
  const shown = make("div", { class: "pictures" }, ...(await Promise.all(files.map(thumbnailOf))));
  return [shown, tableOf(cosines, files.map((file) => file.name))];
});

// --- speech

// A WAV file of one channel, of floats from -1 to 1.
function wavOf(samples, name) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (at, text) => [...text].forEach((one, i) => view.setUint8(at + i, one.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of what follows, up to "data"
  view.setUint16(20, 1, true); // integers
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, RECORDED_HZ, true);
  view.setUint32(28, 2 * RECORDED_HZ, true); // bytes a second
  view.setUint16(32, 2, true); // bytes of a sample
  view.setUint16(34, 16, true); // bits of a sample
  word(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((one, i) => {
    view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, one))), true);
  });
  return new File([view], name, { type: "audio/wav" });
}

// What the browser has recorded, in a format of its own, as a file that every server reads.
async function recordingOf(chunks) {
  const context = new OfflineAudioContext(1, 1, RECORDED_HZ);
  const heard = await context.decodeAudioData(await new Blob(chunks).arrayBuffer());
  return wavOf(heard.getChannelData(0), "recording.wav");
}

// The button records until it is pressed again; then the form is sent.
function recordBy(button, form) {
  const label = button.textContent;
  const error = find(".error", form);
  let recorder = null;
  const record = async () => {
    // Absent where a page comes neither by https nor from this machine.
    if (!navigator.mediaDevices) throw new Error("The browser gives its microphone to pages of https and localhost alone.");
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const chunks = [];
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", (event) => chunks.push(event.data));
    recorder.addEventListener("stop", async () => {
      for (const track of stream.getTracks()) track.stop();
      recorder = null;
      button.textContent = label;
      try {
        const files = new DataTransfer();
        files.items.add(await recordingOf(chunks));
        form.elements.audio.files = files.files;
        form.requestSubmit();
      } catch {
        error.textContent = "Nothing was recorded.";
      }
    });
    recorder.start();
    button.textContent = "Stop and write down";
  };
  button.addEventListener("click", async () => {
    error.textContent = "";
    try {
      if (recorder) recorder.stop();
      else await record();
    } catch (failure) {
      error.textContent = failure.message;
    }
  });
}

recordBy(find("#transcribe .record"), find("#transcribe"));

function clockOf(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

onResult("transcribe", async (fields, json) => {
  const body = new FormData();
  body.set("file", fields.audio.files[0]);
  body.set("model", name());
  body.set("response_format", "verbose_json");
  const language = fields.language.value.trim();
  if (language) body.set("language", language);
  const { segments } = await json(`v1/audio/${fields.task.value}`, body);
  if (segments.length === 0) return ["Nothing is said."];
  const rows = segments.map(({ start, end, text }) => {
    const time = make("span", { class: "time" }, `${clockOf(start)} to ${clockOf(end)}`);
    return make("li", {}, time, make("span", { class: "what" }, text.trim()));
  });
  return [make("ol", { class: "said" }, ...rows)];
});

// --- text to text

const languageNames = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });

// "French (fra_Latn)": codes are of ISO 639, with a script (Latn) or a country (XX) behind some.
function languageOf(code) {
  const [language, more] = code.split("_");
  let name;
  try {
    name = languageNames.of(more?.length === 4 ? `${language}-${more}` : language);
  } catch {
    name = undefined; // a model's own name of a language
  }
  return name ? `${name} (${code})` : code;
}

function offerLanguages(languages) {
  for (const side of ["source", "target"]) {
    const select = find(`#translate [name=${side}]`);
    const { codes, default: usual, required } = languages[side];
    const before = select.value;
    const order = new Intl.Collator("en").compare;
    const names = codes.map((code) => [languageOf(code), code]).sort(([one], [other]) => order(one, other));
    const first = usual ? `by default ${languageOf(usual)}` : required ? "choose one" : "not said";
    const options = names.map(([text, value]) => make("option", { value }, text));
    select.replaceChildren(make("option", { value: "" }, first), ...options);
    select.required = required;
    select.value = codes.includes(before) ? before : "";
    select.closest("label").hidden = codes.length === 0;
  }
}

// The best first; of beam search with their scores, which are logarithms.
function ranked(texts) {
  if (texts.some((one) => one.score === undefined)) return said(texts.map((one) => one.text));
  const best = Math.max(...texts.map((one) => one.score));
  return bars(texts.map(({ text, score }) => [score, text, Math.exp(score - best)]), "ol");
}

const said = (texts) => make("div", { class: "log" }, texts.join("\n\n"));

function convertBy(id, path, field) {
  onResult(id, async (fields, json) => {
    const { text, source, target, beams, n, most } = fields;
    const asked = {};
    if (beams.value) asked.num_beams = Number(beams.value);
    if (Number(n.value) > 1) asked.num_return_sequences = Number(n.value);
    if (most.value) asked.max_new_tokens = Number(most.value);
    const parameters = { generate_parameters: asked };
    if (source?.value) parameters.src_lang = source.value;
    if (target?.value) parameters.tgt_lang = target.value;
    const made = await json(path, { model: name(), inputs: text.value, parameters });
    return [ranked([made].flat().map((one) => ({ text: one[field], score: one.score })))];
  });
}

convertBy("translate", "translate", "translation_text");
convertBy("summarize", "summarize", "summary_text");

// --- generation

// Sends a request, writes what comes of its stream by `write(text)`, and then says what it took.
async function stream(form, send, path, body, write) {
  const { temperature, most, seed } = form.elements;
  const asked = { model: name(), stream: true, stream_options: { include_usage: true }, ...body };
  if (temperature.value) asked.temperature = Number(temperature.value);
  if (most.value) asked.max_tokens = Number(most.value);
  if (seed.value) asked.seed = Number(seed.value);
  const stopping = new AbortController();
  const stop = find(".stop", form);
  const figures = find(".figures", form);
  const begin = performance.now();
  let first = null;
  let usage = null;
  let reason = null;
  figures.textContent = "";
  stop.disabled = false;
  stop.onclick = () => stopping.abort();
  try {
    for await (const event of eventsOf(await send(path, asked, stopping.signal))) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      const text = choice?.delta?.content ?? choice?.text;
      reason = choice?.finish_reason ?? reason;
      if (!text) continue;
      first ??= performance.now();
      write(text);
    }
  } finally {
    stop.disabled = true;
    if (stopping.signal.aborted) figures.textContent = "Stopped.";
  }
  if (!usage) return;
  const seconds = (performance.now() - (first ?? begin)) / 1000;
  const rate = usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0;
  const parts = [
    `${usage.prompt_tokens} tokens read`,
    `${usage.completion_tokens} written`,
    `first after ${Math.round((first ?? performance.now()) - begin)} ms`,
  ];
  if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
  if (reason === "length") parts.push("cut at the most tokens that were asked for");
  figures.textContent = parts.join(", ");
}

let conversation = [];

function message(role) {
  const text = make("span");
  const title = { user: "You", assistant: name() }[role];
  find("#log").append(make("div", { class: `message ${role}` }, make("b", {}, title), text));
  return text;
}

onSubmit("chat", async (form, send) => {
  const log = find("#log");
  const given = form.elements.message.value;
  const system = form.elements.system.value.trim();
  const asked = { role: "user", content: given };
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation, asked];
  const before = conversation;
  message("user").textContent = given;
  form.elements.message.value = "";
  const answer = message("assistant");
  log.setAttribute("aria-busy", "true");
  const write = (text) => {
    const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    answer.append(text);
    if (below) log.scrollTop = log.scrollHeight;
  };
  log.scrollTop = log.scrollHeight;
  try {
    await stream(form, send, "v1/chat/completions", { messages }, write);
  } catch (error) {
    if (!answer.textContent) {
      // Nothing came: the message goes back to where it was written.
      findAll(".message", log).slice(-2).forEach((one) => one.remove());
      form.elements.message.value ||= given;
    }
    throw error;
  } finally {
    log.removeAttribute("aria-busy");
    const said = { role: "assistant", content: answer.textContent };
    if (said.content && conversation === before) conversation = [...before, asked, said];
    form.elements.message.focus();
  }
});

find("#chat .anew").addEventListener("click", () => {
  find("#chat .stop").click();
  conversation = [];
  find("#log").replaceChildren();
  for (const place of findAll("#chat .error, #chat .figures")) place.textContent = "";
  find("#chat [name=message]").focus();
});

onSubmit("convert", async (form, send) => {
  const result = find(".result", form);
  result.replaceChildren();
  await stream(form, send, "v1/completions", { prompt: form.elements.prompt.value }, (text) => result.append(text));
});

onSubmit("complete", async (form, send) => {
  const prompt = form.elements.prompt.value;
  const result = find(".result", form);
  result.replaceChildren(make("span", { class: "given" }, prompt));
  await stream(form, send, "v1/completions", { prompt }, (text) => result.append(text));
});

// --- the server now

// A sum over the samples of a metric whose labels suit.
function total(text, metric, suits = () => true) {
  let sum = 0;
  for (const [, labels, value] of text.matchAll(new RegExp(`^${metric}(?:\\{(.*)\\})? (\\S+)$`, "gm"))) {
    if (suits(labels ?? "")) sum += Number(value);
  }
  return sum;
}

// [title, what is shown, whether it is the growth in a second]
const CURVES = [
  ["requests/s", (text) => total(text, "packhorse_requests_total", (of) => !of.includes('model=""')), true],
  ["tokens read/s", (text) => total(text, "packhorse_tokens_total"), true],
  ["tokens written/s", (text) => total(text, "packhorse_generated_tokens_total"), true],
  [
    "requests that wait",
    (text) => total(text, "te_queue_size") + total(text, "packhorse_generation_queued"),
    false,
  ],
  ["tokens that wait", (text) => total(text, "packhorse_queue_tokens"), false],
  ["texts being written", (text) => total(text, "packhorse_generation_running"), false],
].map(([title, read, grows]) => {
  const line = draw("polyline");
  const number = make("span", {}, "–");
  const box = { viewBox: `0 0 ${POINTS - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" };
  find("#live").append(make("dt", {}, title), make("dd", {}, number, draw("svg", box, line)));
  return { read, grows, line, number, last: null, points: [] };
});

function showCurve(curve, value) {
  curve.points = [...curve.points, value].slice(-POINTS);
  const most = Math.max(...curve.points, 1e-9);
  const begin = POINTS - curve.points.length;
  const points = curve.points.map((one, i) => `${begin + i},${19 - (18 * one) / most}`);
  curve.line.setAttribute("points", points.join(" "));
  curve.number.textContent = value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

let lastPoll = null;

async function poll() {
  if (document.hidden) return;
  try {
    const text = await (await ask("metrics")).text();
    const now = performance.now();
    for (const curve of CURVES) {
      const value = curve.read(text);
      // Counters of a server that has begun anew are less than before.
      const growth = Math.max(0, value - curve.last) / ((now - lastPoll) / 1000);
      if (!curve.grows) showCurve(curve, value);
      else if (lastPoll !== null) showCurve(curve, growth);
      curve.last = value;
    }
    lastPoll = now;
    find("#live-trouble").textContent = "";
  } catch (error) {
    find("#live-trouble").textContent = error.message;
  }
}

async function pollForever() {
  await poll();
  setTimeout(pollForever, POLL_MS);
}

pollForever();
await readModels();
