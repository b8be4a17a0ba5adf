"use strict";

const DEEPEST = 4, MOST_DRAFTERS = 5;
const find = (id) => document.getElementById(id);
const turns = [];
let models = [], asking = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function card(kind, title) {
  const made = element("article", kind);
  made.append(element("h2", "", title));
  const text = element("div", "text");
  made.append(text);
  return { made, text };
}

function pieceOf([text, source, depth]) {
  if (source < 0) return document.createTextNode(text);
  const name = (models[0].drafters || [])[source] || `drafter ${source}`;
  const span = element("span", `a${Math.min(depth, DEEPEST)} b${Math.min(source, MOST_DRAFTERS - 1)}`, text);
  span.title = `drafted by ${name}, token ${depth} of its draft`;
  return span;
}

function showLegend() {
  const by = find("colour").value, legend = find("legend");
  find("talk").className = by;
  legend.className = by;
  legend.replaceChildren(document.createTextNode("Accepted drafts:"));
  if (by === "depth") {
    for (let depth = 1; depth <= DEEPEST; depth++) {
      legend.append(element("span", `a${depth}`, depth < DEEPEST ? `token ${depth}` : `token ${depth} and later`));
    }
  } else {
    const names = (models[0] && models[0].drafters) || [];
    names.slice(0, MOST_DRAFTERS).forEach((name, source) => legend.append(element("span", `b${source}`, name)));
  }
}

function showFigures(place, usage, seconds) {
  const gained = usage.speculation, parts = [];
  const add = (name, value) => parts.push([name, value]);
  add("tokens", usage.completion_tokens);
  if (seconds > 0) add("tokens/s", (usage.completion_tokens / seconds).toFixed(1));
  if (gained.tau !== null) add("tau", gained.tau.toFixed(2));
  if (gained.drafted_tokens) add("accepted drafts", `${gained.accepted_tokens} of ${gained.drafted_tokens}`);
  add("seconds", seconds.toFixed(2));
  place.replaceChildren(...parts.map(([name, value]) => {
    const part = element("span", "", `${name} `);
    part.append(element("b", "", String(value)));
    return part;
  }));
}

async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (left + decoder.decode(value, { stream: true })).split("\n\n");
    left = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ") && block !== "data: [DONE]") yield JSON.parse(block.slice(6));
    }
  }
}

function bodyOf(model, prompt) {
  const body = { model, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, return_draft_sources: true };
  const numbers = { temperature: find("temperature").value, max_tokens: find("tokens").value, seed: find("seed").value };
  for (const [name, value] of Object.entries(numbers)) if (value !== "") body[name] = Number(value);
  if (find("raw").checked) body.prompt = prompt;
  else body.messages = turns;
  return body;
}

async function answer(model, prompt, shown) {
  const path = find("raw").checked ? "v1/completions" : "v1/chat/completions";
  const figures = element("p", "figures"), began = performance.now();
  shown.made.append(figures);
  const headers = { "Content-Type": "application/json" };
  let text = "", rate = 0;
  try {
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(bodyOf(model, prompt)), signal: asking.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0], seconds = (performance.now() - began) / 1000;
      if (choice) {
        shown.text.append(...choice.pieces.map(pieceOf));
        text += choice.pieces.map((piece) => piece[0]).join("");
      }
      if (event.usage) {
        if (choice) rate = event.usage.completion_tokens / seconds;
        showFigures(figures, event.usage, seconds);
      }
      keepInView();
    }
  } catch (error) {
    shown.made.append(element("p", "error", error.name === "AbortError" ? "Stopped." : error.message));
  }
  return { text, rate };
}

function keepInView() {
  const talk = find("talk");
  talk.scrollTop = talk.scrollHeight;
}

async function send(event) {
  event.preventDefault();
  const prompt = find("prompt").value;
  if (asking || !prompt.trim()) return;
  asking = new AbortController();
  setBusy(true);
  find("hint").hidden = true;
  find("prompt").value = "";
  const asked = card("user", find("raw").checked ? "Text" : "You");
  asked.text.textContent = prompt;
  turns.push({ role: "user", content: prompt });
  const pair = element("div", ""), own = card("answer", models[0].id);
  pair.append(own.made);
  find("talk").append(asked.made, pair);
  const plain = find("plain").checked && models.find((model) => model.id === "plain");
  const mine = await answer(models[0].id, prompt, own);
  if (plain && !asking.signal.aborted) {
    pair.className = "pair";
    const other = card("answer", "plain decoding");
    pair.append(other.made);
    const theirs = await answer("plain", prompt, other);
    if (mine.rate && theirs.rate) {
      own.made.querySelector(".figures").append(element("span", "", `${(mine.rate / theirs.rate).toFixed(2)} times as fast as plain`));
    }
  }
  if (mine.text) turns.push({ role: "assistant", content: mine.text });
  else turns.pop();
  asking = null;
  setBusy(false);
  keepInView();
  find("prompt").focus();
}

function setBusy(busy) {
  find("send").hidden = busy;
  find("stop").hidden = !busy;
}

function clear() {
  turns.length = 0;
  find("talk").replaceChildren(find("hint"));
  find("hint").hidden = false;
}

async function begin() {
  const response = await fetch("v1/models");
  models = (await response.json()).data;
  const first = models[0];
  find("facts").textContent = `${first.id} · target ${first.root} · ${first.guarantee}`;
  document.title = `specdec: ${first.id}`;
  find("beside").hidden = !models.some((model) => model.id === "plain" && model !== first);
  showLegend();
}

find("form").addEventListener("submit", send);
find("stop").addEventListener("click", () => asking && asking.abort());
find("clear").addEventListener("click", clear);
find("colour").addEventListener("change", showLegend);
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) send(event);
});
begin().catch((error) => { find("facts").textContent = `The server does not answer: ${error.message}`; });
