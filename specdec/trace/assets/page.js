"use strict";
const COLUMN = 132, LINE = 30, BOX = 104, BOX_HEIGHT = 22, MARGIN = 8, SHOWN = 13;
const DEPTHS = ["#bbf7d0", "#86efac", "#5eead4", "#67e8f9", "#93c5fd", "#c4b5fd", "#f0abfc", "#fda4af"];
const DRAFTERS = ["#86efac", "#fcd34d", "#93c5fd", "#f0abfc", "#fda4af", "#5eead4", "#c4b5fd", "#fdba74"];
const REJECTED = "#fecaca", UNTRIED = "#e5e7eb", TARGET = "#ffffff";

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function shown(text) {
  const marks = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");
  const letters = Array.from(marks);
  return letters.length > SHOWN ? letters.slice(0, SHOWN - 1).join("") + "…" : marks;
}

function colourOf(depth, source, mode) {
  return mode === "drafter" ? DRAFTERS[source % DRAFTERS.length] : DEPTHS[Math.min(depth, DEPTHS.length) - 1];
}

function drafterOf(trace, step, node) {
  const source = step.source.length ? step.source[node] : 0;
  return { source, name: trace.drafters[source] ?? `drafter ${source}` };
}

function legendHtml(trace, mode) {
  const swatch = (colour, words) => `<span style="background:${colour}">${escaped(words)}</span>`;
  const deepest = Math.max(0, ...trace.steps.map((step) => step.path.length));
  const depths = Array.from({ length: Math.min(deepest, DEPTHS.length) }, (_, i) =>
    swatch(DEPTHS[i], i + 1 === DEPTHS.length ? `depth ${i + 1} and below` : `depth ${i + 1}`));
  const drafters = trace.drafters.map((name, i) => swatch(DRAFTERS[i % DRAFTERS.length], name));
  return "accepted drafts: " + ((mode === "drafter" ? drafters : depths).join("") || "none") +
    swatch(TARGET, "target's own") + swatch(REJECTED, "tried and not taken") + swatch(UNTRIED, "below a token that was not taken");
}

function answerHtml(trace, mode) {
  const parts = [`<span data-step="0" title="from the prefill">${escaped(trace.first)}</span>`];
  trace.steps.forEach((step, number) => step.emitted.forEach((text, i) => {
    const drafted = i < step.path.length;
    const colour = drafted ? colourOf(i + 1, drafterOf(trace, step, step.path[i]).source, mode) : TARGET;
    const from = drafted ? `depth ${i + 1}, ${drafterOf(trace, step, step.path[i]).name}` : "the target's own";
    parts.push(`<span data-step="${number}" style="background:${colour}" title="step ${number + 1}: ${escaped(from)}; ` +
      `token ${step.ids[i]}">${escaped(text)}</span>`);
  }));
  return parts.join("");
}

function percent(value) {
  if (value === null) return "–";
  return value > 0 && value < 0.001 ? value.toExponential(1) : value.toFixed(3);
}

function stateOf(step, node) {
  if (node === 0) return "root";
  if (step.path.includes(node)) return "accepted";
  const parent = step.parents[node];
  return parent === 0 || step.path.includes(parent) ? "rejected" : "untried";
}

function nodeTitle(trace, step, node) {
  if (node === 0) return `token ${step.tokens[0]}: the root, the last token that was sure before this step`;
  const words = { accepted: "accepted", rejected: "tried and not taken", untried: "below a token that was not taken" };
  const lines = [`${JSON.stringify(step.texts[node])}, token ${step.tokens[node]}: ${words[stateOf(step, node)]}`,
    `drafter ${drafterOf(trace, step, node).name}, depth ${step.columns[node]}, ${step.draw[step.parents[node]] ?? "no"} draw`];
  if (step.p[node] !== null) lines.push(`target probability p ${percent(step.p[node])}`);
  if (step.q[node] !== null) lines.push(`draft probability q ${percent(step.q[node])}`);
  return lines.join("\n");
}

function boxSvg(x, y, fill, text, title, more) {
  const top = y - BOX_HEIGHT / 2;
  return `<g><title>${escaped(title)}</title><rect x="${x}" y="${top}" width="${BOX}" height="${BOX_HEIGHT}" rx="5" ` +
    `fill="${fill}" ${more}/><text x="${x + 6}" y="${y + 4}">${escaped(shown(text))}</text></g>`;
}

function treeSvg(trace, index, mode) {
  const step = trace.steps[index];
  const at = (node) => [MARGIN + step.columns[node] * COLUMN, MARGIN + BOX_HEIGHT / 2 + step.lines[node] * LINE];
  const edge = ([ax, ay], [bx, by], kept) => `<path d="M${ax + BOX} ${ay}C${ax + BOX + 14} ${ay} ${bx - 14} ${by} ${bx} ${by}" ` +
    `fill="none" stroke="${kept ? "#16a34a" : "#9ca3af"}" stroke-width="${kept ? 2.5 : 1}"/>`;
  const edges = [], boxes = [];
  step.tokens.forEach((_, node) => {
    const state = stateOf(step, node), [x, y] = at(node);
    if (node > 0) edges.push(edge(at(step.parents[node]), [x, y], state === "accepted"));
    const fill = { root: "#111827", rejected: REJECTED, untried: UNTRIED }[state] ??
      colourOf(step.columns[node], drafterOf(trace, step, node).source, mode);
    const box = boxSvg(x, y, fill, step.texts[node], nodeTitle(trace, step, node), `stroke="${state === "accepted" ? "#16a34a" : "#9ca3af"}"`);
    boxes.push(state === "root" ? box.replace("<text ", '<text fill="#fff" ') : box);
  });
  const last = step.path.length ? step.path[step.path.length - 1] : 0;
  const isLeaf = !step.parents.includes(last);
  const tip = [at(last)[0] + COLUMN, isLeaf ? at(last)[1] : MARGIN + BOX_HEIGHT / 2 + step.height * LINE];
  if (step.ending !== "cut by a stop or the limit") {
    edges.push(edge(at(last), tip, true));
    boxes.push(boxSvg(tip[0], tip[1], TARGET, step.next[1], `token ${step.next[0]}: drawn by the target, p ${percent(step.next[2])}`,
      'stroke="#111827" stroke-dasharray="4 3"'));
  }
  const width = Math.max(step.width * COLUMN, tip[0] + COLUMN) + MARGIN, height = MARGIN * 2 + (step.height + (isLeaf ? 0 : 1)) * LINE;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" role="img">${edges.join("")}${boxes.join("")}</svg>`;
}

function whyHtml(trace, step) {
  const drawn = `<b>${escaped(shown(step.next[1]))}</b> (p ${percent(step.next[2])})`;
  if (step.ending === "nothing drafted") return `Nothing was drafted: the target drew ${drawn}.`;
  if (step.ending === "all accepted") return `Every level was accepted; the target drew one more token, ${drawn}.`;
  if (step.ending === "cut by a stop or the limit") return "A stop or the token limit ended the answer within the accepted path.";
  const last = step.path.length ? step.path[step.path.length - 1] : 0;
  const tried = step.parents.map((parent, node) => (parent === last && node > 0 ? node : -1)).filter((node) => node > 0);
  const listed = tried.map((node) => `<b>${escaped(shown(step.texts[node]))}</b> (p ${percent(step.p[node])}` +
    (step.q[node] === null ? "" : `, q ${percent(step.q[node])}`) + ")");
  const where = step.path.length ? `after ${step.path.length} accepted` : "at the first level";
  return `It stopped ${where}: drafted ${listed.join(", ")}; none was taken, and the target drew ${drawn} instead.`;
}

function wordsHtml(trace, index) {
  const step = trace.steps[index];
  const milliseconds = Object.entries(step.seconds).map(([phase, ms]) => `${escaped(phase)} ${ms} ms`).join(", ");
  return `Position ${step.position}: ${step.tokens.length - 1} drafted, ${Math.min(step.path.length, step.emitted.length)} accepted, ` +
    `${step.emitted.length} emitted. ${whyHtml(trace, step)}<br><small>${milliseconds}</small>`;
}

function start(page) {
  const trace = JSON.parse(page.getElementById("data").textContent);
  const part = (id) => page.getElementById(id);
  const count = trace.steps.length;
  let index = 0, mode = "depth", timer = null, spans = [];
  part("name").textContent = trace.strategy;
  part("facts").innerHTML = trace.facts.map(([name, value]) => `<div><dt>${escaped(name)}</dt><dd>${escaped(value)}</dd></div>`).join("");
  part("slider").max = Math.max(0, count - 1);

  function show(to) {
    index = Math.max(0, Math.min(count - 1, to));
    part("slider").value = index;
    part("place").textContent = count ? `step ${index + 1} of ${count}` : "no step";
    if (!count) return;
    part("words").innerHTML = wordsHtml(trace, index);
    part("tree").innerHTML = treeSvg(trace, index, mode);
    let current = null;
    spans.forEach((span, i) => {
      const step = i === 0 ? -1 : Number(span.dataset.step);
      span.className = step > index ? "later" : step === index ? "now" : "";
      if (step === index) current = span;
    });
    if (current) current.scrollIntoView({ block: "nearest" });
  }

  function paint() {
    part("legend").innerHTML = legendHtml(trace, mode);
    part("answer").innerHTML = answerHtml(trace, mode);
    spans = Array.from(part("answer").querySelectorAll("span"));
    show(index);
  }

  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => (index >= count - 1 ? play(false) : show(index + 1)), 400) : null;
    part("play").textContent = on ? "pause" : "play";
  }

  const moves = { ArrowLeft: () => show(index - 1), ArrowRight: () => show(index + 1), Home: () => show(0), End: () => show(count - 1),
    PageUp: () => show(index - 10), PageDown: () => show(index + 10), " ": () => play(timer === null) };
  page.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !moves[event.key]) return;
    moves[event.key]();
    event.preventDefault();
  });
  part("first").onclick = moves.Home;
  part("back").onclick = moves.ArrowLeft;
  part("forth").onclick = moves.ArrowRight;
  part("last").onclick = moves.End;
  part("play").onclick = moves[" "];
  part("slider").oninput = (event) => show(Number(event.target.value));
  part("answer").onclick = (event) => { if (event.target.dataset.step) show(Number(event.target.dataset.step)); };
  page.querySelectorAll("input[name=mode]").forEach((choice) => { choice.onchange = () => { mode = choice.value; paint(); choice.blur(); }; });
  paint();
}

if (typeof document !== "undefined") start(document);
